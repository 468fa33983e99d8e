-- purge: removes a batch of the run, whatever its state, and everything that is kept of it. An owner that is at it is
-- fenced by that: it finds nothing of its own any more.
--
-- k     the batch's key id
-- run   whose batch it must be
--
-- Replies {PURGED, the status that it had}; {OTHER} (another run's, nothing was written); {GONE} (nothing is known of
-- it). Sent again: GONE.
-- Deletes the batch's keys, its bells, their job hashes and rounds that name them, its entries in pending, inflight,
-- homed, owned and quarantine. The producers' streams and cursors are the caller's to delete: they are of the run, not
-- of a batch.
local A, bad = args('k:key run:name')
if bad then return bad end
local S, broken = load(A.k)
if broken then return broken end
if not S then return { 'GONE' } end
if S.run ~= A.run then return { 'OTHER' } end
local popped = S.list .. ':intermediate'
local own_lists, look = {}, { popped, 'list' }
for _, node in ipairs({ S.node, S.home }) do
  if node ~= '' then
    own_lists[#own_lists + 1] = 'col:homed:' .. S.queue .. ':' .. node
    look[#look + 1] = own_lists[#own_lists]
    look[#look + 1] = 'list'
  end
end
broken = mistyped(look)
if broken then return broken end
for n = 1, S.rings do
  local jid = A.k .. '-' .. int(n)
  redis.call('LREM', S.list, 0, jid)
  redis.call('LREM', popped, 0, jid)
  for _, own_list in ipairs(own_lists) do redis.call('LREM', own_list, 0, jid) end
  local round = redis.pcall('HGET', 'rq:job:' .. jid, 'round')
  if type(round) == 'string' then
    local first, last = string.match(redis.call('HGET', S.rounds, round) or '', '^(%S+) (%S+)$')
    if first == jid or last == jid then redis.call('HDEL', S.rounds, round) end
  end
  redis.call('DEL', 'rq:job:' .. jid)
end
if S.node ~= '' and redis.call('HGET', 'col:owned:' .. S.node, S.worker) == A.k then
  redis.call('HDEL', 'col:owned:' .. S.node, S.worker)
end
redis.call('ZREM', S.pending, A.k)
redis.call('ZREM', S.inflight, A.k)
-- Only a batch that lost owners can have a candidate there.
local entries = S.cautious == 1 and redis.call('XRANGE', 'col:quarantine', '-', '+') or {}
for _, entry in ipairs(entries) do
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'k' and fields[i + 1] == A.k then redis.call('XDEL', 'col:quarantine', entry[1]) end
  end
end
for _, key in pairs(S.p) do redis.call('DEL', key) end
return { 'PURGED', S.status }
