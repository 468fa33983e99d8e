"""The queue: Redis clients, the scripts as typed calls, the codec, and the edge towards rq.

`batches.BatchQueue` is the centre; `clients` connects, `server_check` refuses servers that would lose batches,
`server` starts one of our own, `codec` packs and unpacks, `rq_edge` knows rq.
"""
