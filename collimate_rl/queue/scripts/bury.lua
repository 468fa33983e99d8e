-- bury: the supervisor knows that a worker's process is gone; what it owned goes back at once.
--
-- node, worker   names
-- counts 0: the process ended because the server was away from it; that is no evidence against a candidate
-- home   1: sessions on this node's daemon can be reached from no other node; a batch with sessions is kept for this
--        node for T.home_ms
--
-- Replies {NONE} (it owned nothing, or what it owned is another's by now), {RELEASED, k}, {ANSWERED, k}.
-- Counts a loss, unless told not to (the worker's alive key goes first). Rings at the front. Sent again: NONE.
-- Writes alive, owned, state, pending, flight, homed, bells; after an answer see answer.lua.
local A, bad = args('node:name worker:name counts:flag home:flag')
if bad then return bad end
local owned = 'col:owned:' .. A.node
local wrong = mistyped({ owned, 'hash' })
if wrong then return wrong end
local k = redis.call('HGET', owned, A.worker)
local S, broken
if k and kinds.key(k) then
  S, broken = load(k)
  if broken then return broken end
end
redis.call('DEL', 'col:alive:' .. A.worker)
redis.call('HDEL', owned, A.worker)
if not S or S.status ~= 'running' or S.worker ~= A.worker or S.node ~= A.node then return { 'NONE' } end
if due_answer(S, 'buried') then return { 'ANSWERED', k } end
if loss(S, not A.counts) then
  answer(S)
  return { 'ANSWERED', k }
end
disown(S, 'buried')
ring(S, false)
if A.home then keep_home(S) end
return { 'RELEASED', k }
