"""The gateway API in front of local sandboxes; `collimate_rl.local_gateway` is its front door.

`keys` who calls and what a tier may; `nodes` where sandboxes run; `images`, `baking`, `templates` what they are forks
of; `sandboxes`, `forking`, `tunnels` what lives; `usage`, `limits` what is counted and refused; `api` and `routes` the
wire; `gateway` all of it together.
"""
