#!/bin/sh
# Makes the ACL file that the server loads:  render-acl.sh USERS.ACL PASSWORDS > /etc/redis/users.acl
#
# PASSWORDS is a folder with a file per user (producer, worker, dashboard, operator, admin) that holds its password:
# a mounted Kubernetes or docker secret, for one. What comes out holds their sha256, as Redis keeps them.
set -eu
umask 077

if [ $# -ne 2 ]; then
  echo "usage: render-acl.sh USERS.ACL PASSWORDS > FILE" >&2
  exit 2
fi
template=$1
passwords=$2

edits=
for user in producer worker dashboard operator admin; do
  file="$passwords/$user"
  if ! [ -r "$file" ]; then
    echo "render-acl.sh: there is no password for the user $user: put one into $file" >&2
    exit 2
  fi
  # A trailing newline is the editor's; passwords are a line.
  password=$(cat "$file")
  if [ ${#password} -lt 16 ]; then
    echo "render-acl.sh: the password in $file has fewer than 16 characters: the server takes thousands of guesses a second" >&2
    exit 2
  fi
  hash=$(printf %s "$password" | sha256sum | cut -d ' ' -f 1)
  name=$(printf %s "$user" | tr '[:lower:]' '[:upper:]')
  edits="$edits;s/@$name@/$hash/"
done

# Comments and empty lines go; a line that is indented belongs to the one before it.
rendered=$(sed -e '/^#/d' -e '/^$/d' "$template" | awk '
  /^ / { sub(/^ +/, " "); line = line $0; next }
  { if (line != "") print line; line = $0 }
  END { if (line != "") print line }
' | sed "${edits#;}")
case $rendered in
  *@[A-Z]*@*)
    echo "render-acl.sh: $template names a user whose password this does not know" >&2
    exit 2
    ;;
esac
printf '%s\n' "$rendered"
