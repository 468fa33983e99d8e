"""The queue as a live web page, `python -m worker dashboard`: reads only, and needs the extra `[dashboard]`."""
