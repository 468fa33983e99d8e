-- claim: makes `owner` the owner of the batch, under a higher fence.
--
-- k       the batch's key id
-- owner   unique per execution (not per worker): a worker that runs two bells of one batch is two owners
-- worker, node   names, for `col:owned`, `col:alive` and the result
--
-- Replies:
--   {OK, fence, lease ms, deadline in ms (may be negative), queued ms, cautious 0/1, losses, errors, passes,
--    payload, verdicts {index, blob, …}, ledger {index, blob, …}, blame {per candidate; empty unless cautious}}
--   {BUSY, ms}  somebody else's lease lives (or has expired while the queue's clock isn't settled), or it is kept for the
--               node that has its sessions
--   {DONE}      answered; perhaps just now, because it was cancelled, past its deadline, or its lost owner left nothing that may run
--   {GONE}      nothing is known of it
-- Sent again by the same live owner it gives the same answer, and changes nothing.
-- Writes state, owned, pending; expiries of the batch's keys; after an answer see answer.lua.
local A, bad = args('k:key owner:name worker:name node:name')
if bad then return bad end
local S, broken = load(A.k)
if broken then return broken end
if not S then return { 'GONE' } end
if S.status == 'done' then return { 'DONE' } end
broken = mistyped({ 'col:owned:' .. A.node, 'hash' })
if broken then return broken end

local function grant()
  local payload = redis.call('GET', S.p.batch)
  return {
    'OK', S.fence, S.lease_until - S.t, S.deadline_at - S.t, S.claimed_at - S.created_at, S.cautious, S.losses,
    S.errors, S.passes, payload or '', redis.call('HGETALL', S.p.verdicts), redis.call('HGETALL', S.p.ledger),
    S.cautious == 1 and blames(S) or {},
  }
end

if live(S) then
  if S.owner == A.owner then return grant() end
  return { 'BUSY', S.lease_until - S.t }
end
if due_answer(S) then return { 'DONE' } end
if S.status == 'open' and S.home_until > S.t and S.home ~= A.node then return { 'BUSY', S.home_until - S.t } end
if S.status == 'running' then
  if not settled(S.queue, S.t) then return { 'BUSY', T.look_ms } end
  if loss(S) then
    answer(S)
    return { 'DONE' }
  end
end
disown(S, 'lost')
S.fence = S.fence + 1
S.owner, S.worker, S.node, S.lease_until = A.owner, A.worker, A.node, S.t + T.lease_ms
if S.claimed_at == 0 then S.claimed_at = S.t end
redis.call('HSET', S.p.state, 'status', 'running', 'owner', A.owner, 'worker', A.worker, 'node', A.node,
  'fence', int(S.fence), 'lease_until', int(S.lease_until), 'claimed_at', int(S.claimed_at),
  'unlisted', '0', 'unlisted_at', '0', 'ring_at', '0', 'home_until', '0', 'released_by', '', 'released_out', '',
  'story', tell(S, 'claimed'))
redis.call('HSET', 'col:owned:' .. A.node, A.worker, A.k)
check_at(S, S.lease_until)
for _, key in ipairs({ S.p.batch, S.p.state, S.p.verdicts, S.p.ledger, S.p.cases, S.p.askers }) do keep(S, key) end
return grant()
