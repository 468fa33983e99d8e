-- mend: the janitor looks at one batch whose check is due, and puts right what is wrong with it.
--
-- k       the batch's key id
-- queue   whose pending set named it
-- listed  1: a bell of it is on the rq list
--
-- Replies {word}:
--   FORGOT     nothing is known of it, or it is answered: no longer pending
--   LIVE       owned, with a living lease: next check when that ends
--   ANSWERED   overdue, cancelled, or its lost owner left nothing that may run
--   SETTLING   the lease has expired, but living owners may not have had time to renew: look again
--   RELEASED   its owner is lost: counted, rung at the front
--   WAITING    a ring is set for later
--   LISTED     unowned, its bell is there
--   LOOK       unowned, on no list: seen for the first time (since the last bell), or not long enough ago
--   RUNG       seen so twice, T.look_ms apart (or its set time has come): another bell
-- Writes state, pending, owned, flight, a bell; after an answer see answer.lua.
local A, bad = args('k:key queue:name listed:flag')
if bad then return bad end
local S, broken = load(A.k)
if broken then return broken end
if not S or S.status == 'done' or S.queue ~= A.queue then
  local pending = 'col:pending:' .. A.queue
  broken = mistyped({ pending, 'zset' })
  if broken then return broken end
  redis.call('ZREM', pending, A.k)
  return { 'FORGOT' }
end
if live(S) then
  check_at(S, S.lease_until)
  return { 'LIVE' }
end
if due_answer(S) then return { 'ANSWERED' } end
if S.status == 'running' then
  if not settled(S.queue, S.t) then
    check_at(S, S.t + T.look_ms)
    return { 'SETTLING' }
  end
  if loss(S) then
    answer(S)
    return { 'ANSWERED' }
  end
  disown(S, 'lost')
  ring(S, false)
  return { 'RELEASED' }
end
if A.listed then
  redis.call('HSET', S.p.state, 'unlisted', '0', 'unlisted_at', '0')
  check_at(S, S.t + T.recheck_ms)
  return { 'LISTED' }
end
if S.ring_at > 0 then
  if S.t < S.ring_at then
    check_at(S, S.ring_at)
    return { 'WAITING' }
  end
  ring(S, S.ring_back == 1)
  return { 'RUNG' }
end
if S.unlisted ~= S.rings then
  redis.call('HSET', S.p.state, 'unlisted', int(S.rings), 'unlisted_at', int(S.t))
  check_at(S, S.t + T.look_ms)
  return { 'LOOK' }
end
if S.t - S.unlisted_at < T.look_ms then
  check_at(S, S.unlisted_at + T.look_ms)
  return { 'LOOK' }
end
ring(S, false)
return { 'RUNG' }
