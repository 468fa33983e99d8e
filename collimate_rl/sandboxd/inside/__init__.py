"""What runs inside the jail: the warm interpreter (zygote), the init of each fork, and the start of each exec.

These modules run on the template's interpreter (Python 3.8 or newer, standard library only), bound read-only into
the jail; the host imports none of their behaviour, only their names.
"""
