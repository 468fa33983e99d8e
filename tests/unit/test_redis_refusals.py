"""What the server refuses is told with what to look at, also where redis-py has no class for it."""

from __future__ import annotations

import pytest
from redis import exceptions as redis_errors

from collimate_rl.errors import QueueError
from collimate_rl.queue.clients import translate_errors


@pytest.mark.parametrize(
    "theirs",
    [
        redis_errors.AuthenticationError("invalid username-password pair or user is disabled."),
        redis_errors.NoPermissionError("this user has no permissions to run the 'get' command"),
        redis_errors.ResponseError("The user executing the script can't access at least one of the keys."),
    ],
    ids=["password", "command", "script"],
)
def test_a_refusal_points_at_the_user(theirs: Exception) -> None:
    with pytest.raises(QueueError) as caught, translate_errors("lease"):
        raise theirs
    told = str(caught.value)
    assert told.startswith("the Redis server refused to lease: ")
    assert told.endswith("check the URL's user and its rights")
    assert ".;" not in told
