-- lease: takes, renews or gives back a named lease (a janitor's, a producer's name).
--
-- name    of the lease
-- token   of whoever asks; unique per process start
-- ms      to hold it for; 0 gives it back
--
-- Replies {1, ms} when it is the caller's (or given back), {0, ms} when it is another's for so long.
-- Writes the lease.
local A, bad = args('name:text token:name ms:int')
if bad then return bad end
local key = 'col:lease:' .. A.name
local wrong = mistyped({ key, 'string' })
if wrong then return wrong end
local holder = redis.call('GET', key)
if A.ms == 0 then
  if holder == A.token then redis.call('DEL', key) end
  return { 1, 0 }
end
if holder and holder ~= A.token then return { 0, math.max(0, redis.call('PTTL', key)) } end
redis.call('SET', key, A.token, 'PX', int(A.ms))
return { 1, A.ms }
