-- seat: takes, renews or gives back a place under the concurrency cap that a gateway's key has over all nodes.
--
-- gate    whose places: the hash of the key
-- token   of the sandbox that sits there
-- ms      to hold the place for; 0 gives it back
-- cap     how many places there are for whoever asks
-- held    '1': the sandbox runs already, so it has its place whatever the cap: a renewal, or one taken over
--
-- Replies {1, places taken} when the place is the token's (or given back), {0, ms} when all are taken and the first may
-- come free in so long.
-- Writes the places of that gate; they end with the last lease in them.
local A, bad = args('gate:name token:name ms:int cap:int held:flag')
if bad then return bad end
local key = 'col:seats:' .. A.gate
local wrong = mistyped({ key, 'zset' })
if wrong then return wrong end
local t = now()
redis.call('ZREMRANGEBYSCORE', key, '-inf', int(t))
if A.ms == 0 then
  redis.call('ZREM', key, A.token)
  return { 1, redis.call('ZCARD', key) }
end
local sits = redis.call('ZSCORE', key, A.token)
if not (sits or A.held or redis.call('ZCARD', key) < A.cap) then
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  return { 0, first[2] and tonumber(first[2]) - t or 0 }
end
redis.call('ZADD', key, int(t + A.ms), A.token)
redis.call('PEXPIRE', key, int(math.max(A.ms, redis.call('PTTL', key))))
return { 1, redis.call('ZCARD', key) }
