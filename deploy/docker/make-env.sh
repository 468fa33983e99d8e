#!/bin/sh
# Prints the .env of compose.yaml: the passwords out of ./secrets that go into URLs.  make-env.sh > .env
set -eu
umask 077
cd "$(dirname "$0")"
for user in worker dashboard; do
  password=$(cat "secrets/$user")
  case $password in
    '' | *[!A-Za-z0-9._~-]*)
      echo "make-env.sh: the password in secrets/$user is empty, or holds what a URL does not take as it is" >&2
      exit 2
      ;;
  esac
  printf '%s_PASSWORD=%s\n' "$(printf %s "$user" | tr '[:lower:]' '[:upper:]')" "$password"
done
