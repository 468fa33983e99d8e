-- tally: adds what was counted of some answers to what the queue's numbers are read from, and moves the cursor on, in
-- one step: however often it is sent, and wherever its sender dies, an answer is counted once.
--
-- queue   whose answers
-- token   of the queue's leading janitor
-- from    the cursor as the caller read it ('0-0' where there was none)
-- to      the id of the last answer that is counted here
-- *       groups of: part, ms, count, then so many pairs. The part says where the pairs go, and ms for how long:
--           total            names and what is added to them, in col:tally:queue
--           slot:N           the same, in col:tally:queue:N
--           run:R            the same, in col:run:queue:R
--           series:R:S:B     the same, in col:series:queue:R:S:B
--           recent           fields and values of one entry of col:recent:queue
--
-- Replies:
--   {OK, to}        counted
--   {STALE, id}     the cursor is there: another counted, or this call was carried out before
--   {NOT_LEADING}   the janitor's lease is another's, or has ended; nothing was written
-- Writes tally, its slots, run, series, recent.
local A, bad = args('queue:name token:name from:text to:text *')
if bad then return bad end
if not string.find(A.from, '^%d+%-%d+$') or not string.find(A.to, '^%d+%-%d+$') then
  return redis.error_reply('COLARG from or to is no id of an answer')
end
if A.from == A.to then return redis.error_reply('COLARG nothing lies between from and to') end
local MAX_RECENT = 5000
local total = 'col:tally:' .. A.queue
local recent = 'col:recent:' .. A.queue
local PARTS = {
  { '^total$', function() return total end },
  { '^slot:(%d+)$', function(slot) return total .. ':' .. slot end },
  { '^run:([%w%._%-]+)$', function(run) return 'col:run:' .. A.queue .. ':' .. run end },
  { '^series:([%w%._%-]+:%d+:%d+)$', function(rest) return 'col:series:' .. A.queue .. ':' .. rest end },
  { '^recent$', function() return recent end },
}

local groups, at, look = {}, 1, { 'col:lease:janitor:' .. A.queue, 'string', total, 'hash' }
while at <= #A.rest do
  local part, ms, count = A.rest[at], tonumber(A.rest[at + 1]), tonumber(A.rest[at + 2])
  local key
  for _, known in ipairs(PARTS) do
    local named = string.match(part, known[1])
    if named then key = known[2](named) end
  end
  if not key or not ms or ms < 1 or not count or count < 1 or count > 2000 or at + 2 + 2 * count > #A.rest then
    return redis.error_reply('COLARG argument ' .. at + 4 .. ' begins no group')
  end
  local group = { key = key, ms = ms, pairs = {} }
  for i = at + 3, at + 2 + 2 * count do
    local even = (i - at) % 2 == 0
    if even and key ~= recent and not string.find(A.rest[i], '^%-?%d+$') then
      return redis.error_reply('COLARG argument ' .. i + 4 .. ' is no number')
    end
    group.pairs[#group.pairs + 1] = A.rest[i]
  end
  groups[#groups + 1] = group
  look[#look + 1] = key
  look[#look + 1] = key == recent and 'stream' or 'hash'
  at = at + 3 + 2 * count
end
bad = mistyped(look)
if bad then return bad end
if redis.call('GET', 'col:lease:janitor:' .. A.queue) ~= A.token then return { 'NOT_LEADING' } end
local cursor = redis.call('HGET', total, 'cursor') or '0-0'
if cursor ~= A.from then return { 'STALE', cursor } end

for _, group in ipairs(groups) do
  if group.key == recent then
    redis.call('XADD', recent, 'MAXLEN', '~', int(MAX_RECENT), '*', unpack(group.pairs))
  else
    local names, sums = {}, {}
    for i = 1, #group.pairs, 2 do names[#names + 1] = group.pairs[i] end
    for i, held in ipairs(redis.call('HMGET', group.key, unpack(names))) do
      sums[#sums + 1] = names[i]
      sums[#sums + 1] = int((tonumber(held or '0') or 0) + tonumber(group.pairs[2 * i]))
    end
    redis.call('HSET', group.key, unpack(sums))
  end
  redis.call('PEXPIRE', group.key, int(group.ms))
end
redis.call('HSET', total, 'cursor', A.to)
redis.call('PEXPIRE', total, int(T.numbers_ms))
return { 'OK', A.to }
