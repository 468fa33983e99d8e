-- verdict: writes one candidate's verdict, once and for all.
--
-- k, owner, fence   as the claim gave them
-- index             the candidate
-- blob              the packed Verdict
--
-- Replies:
--   {ACCEPTED}  it stands; also when exactly this blob stood already, whoever asks
--   {STANDS}    another verdict stands, and stays
--   {FENCED}    none stands, and the caller isn't the owner any more; nothing was written
-- Writes the verdict; ends the candidate's exposure (its mark), and a row of errors.
local A, bad = args('k:key owner:name fence:int index:int blob:bytes')
if bad then return bad end
local S, broken = load(A.k, 'verdicts', 'flight')
if broken then return broken end
if not S then return { 'FENCED' } end
if A.index >= S.n then return redis.error_reply('COLARG index is beyond the last candidate') end
if A.blob == '' or #A.blob > 1048576 then return redis.error_reply('COLARG the verdict is empty or above 1 MiB') end
local i = int(A.index)
local old = redis.call('HGET', S.p.verdicts, i)
if old then return { old == A.blob and 'ACCEPTED' or 'STANDS' } end
if not own(S, A.owner, A.fence) then return { 'FENCED' } end
redis.call('HSET', S.p.verdicts, i, A.blob)
keep(S, S.p.verdicts)
redis.call('HDEL', S.p.flight, i)
if S.errors > 0 then redis.call('HSET', S.p.state, 'errors', '0') end
return { 'ACCEPTED' }
