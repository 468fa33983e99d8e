-- mark: in a cautious batch, says that a candidate starts now, so that a loss blames what ran. Elsewhere a no-op.
--
-- k, owner, fence   as the claim gave them
-- index             the candidate
--
-- Replies {OK}, {FENCED}. Writes `flight`.
local A, bad = args('k:key owner:name fence:int index:int')
if bad then return bad end
local S, broken = load(A.k, 'verdicts', 'flight')
if broken then return broken end
if not S or not own(S, A.owner, A.fence) then return { 'FENCED' } end
if A.index >= S.n then return redis.error_reply('COLARG index is beyond the last candidate') end
if S.cautious == 1 and redis.call('HEXISTS', S.p.verdicts, int(A.index)) == 0 then
  redis.call('HSET', S.p.flight, int(A.index), int(S.t))
  keep(S, S.p.flight)
end
return { 'OK' }
