"""Makes a property's cases: its generator and its reference run here, where no candidate is.

The job (`collimate-job.json`, JSON): `mark`, `reference` (the source of `_ref`), `generator`, `k`, `seed` (hex),
`value_bytes`. The result, between the lines `mark` + " begin" and `mark` + " end": a line per case, `[input, expected]`
as trees; a fault is an object `{"fault": words}` instead.
"""

from __future__ import annotations

import json
import os
import random
import sys
from typing import Any, Dict, List

from collimate_rl.guest.encoder import Encoder
from collimate_rl.guest.plain import Unencodable, dumps


def make_cases(job: Dict[str, Any]) -> List[str]:
    """One line per case; the last is the fault that ended it, if one did."""
    lines: List[str] = []
    what = "the reference can't be loaded"
    try:
        space: Dict[str, Any] = {"__name__": "property", "random": random}
        exec(compile(job["reference"], "<reference>", "exec", 0, True), space)
        generate = compile(job["generator"], "<generator>", "eval", 0, True)
        random.seed(int(job["seed"], 16))
        for n in range(job["k"]):
            what = "the generator fails on case %d" % n
            x = eval(generate, space)
            given = Encoder(None, job["value_bytes"]).encode(x)
            what = "the reference fails on case %d" % n
            expected = Encoder(None, job["value_bytes"]).encode(space["_ref"](x))
            lines.append(dumps([given, expected]))
    except Unencodable as fault:
        lines.append(dumps({"fault": "%s: %s is no plain data" % (what, fault.reason)}))
    except BaseException as error:
        lines.append(dumps({"fault": ("%s: %s: %s" % (what, type(error).__name__, error))[:1000]}))
    return lines


def main() -> None:
    with open("collimate-job.json") as file:
        job = json.load(file)
    os.unlink("collimate-job.json")
    getattr(sys, "set_int_max_str_digits", int)(0)
    sys.setrecursionlimit(10_000)
    sys.stdout.write("\n".join(["", job["mark"] + " begin", *make_cases(job), job["mark"] + " end", ""]))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
