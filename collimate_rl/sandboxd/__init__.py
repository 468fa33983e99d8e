"""The local sandbox daemon: the daemon API over forks of a warm interpreter, on this machine.

A request goes `http_front` -> `service` (sessions, admission, health) -> a backend. The backend `namespaces` keeps
`zygotes`, each in a `jail` that bubblewrap builds, and runs execs in `forks` of them under `cgroups` and `seccomp`
filters; what runs inside a jail is in `inside`. Templates come from `templates` and `config_file`, are laid out by
`plans` and kept up by `keepers`. What a session serves (`serving`) is its `entry` server and its `exposed` ports, whose
bytes pass through one `portloop`. The backend `plain` isolates nothing. `daemon` ties it together;
`collimate_rl.local_backend` is the front door.
"""
