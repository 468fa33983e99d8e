-- renew: the owner is alive. Valid while it owns, even late (nobody has taken over yet).
--
-- k, owner, fence   as the claim gave them
--
-- Replies:
--   {OK, lease ms, cancel 0/1, deadline in ms (may be negative)}
--   {FENCED}   somebody else's, released, or answered
--   {OVERDUE}  past the deadline by more than T.overdue_ms: the lease is left to run out
-- Writes state.lease_until. The pending entry keeps its time: `mend` finds the batch live and moves it on.
local A, bad = args('k:key owner:name fence:int')
if bad then return bad end
local S, broken = load(A.k)
if broken then return broken end
if not S or not own(S, A.owner, A.fence) then return { 'FENCED' } end
if S.t > S.deadline_at + T.overdue_ms then return { 'OVERDUE' } end
redis.call('HSET', S.p.state, 'lease_until', int(S.t + T.lease_ms))
return { 'OK', T.lease_ms, S.cancel, S.deadline_at - S.t }
