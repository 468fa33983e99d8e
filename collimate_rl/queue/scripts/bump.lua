-- bump: these batches have a bell on the list: nothing to mend, look again after T.recheck_ms.
--
-- queue   the queue's name
-- *       key ids
--
-- Replies {how many were still pending}. Writes pending.
local A, bad = args('queue:name *')
if bad then return bad end
local pending = 'col:pending:' .. A.queue
local wrong = mistyped({ pending, 'zset' })
if wrong then return wrong end
for _, k in ipairs(A.rest) do
  if not kinds.key(k) then return redis.error_reply('COLARG ' .. k .. ' is no key id') end
end
local at, moved = int(now() + T.recheck_ms), 0
for _, k in ipairs(A.rest) do
  if redis.call('ZSCORE', pending, k) then
    redis.call('ZADD', pending, 'XX', at, k)
    moved = moved + 1
  end
end
return { moved }
