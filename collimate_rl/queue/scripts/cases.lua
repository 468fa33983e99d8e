-- cases: stores what a judge fork made for this batch (inputs, reference outputs), once, so that whoever takes the
-- batch over judges the same cases.
--
-- k, owner, fence   as the claim gave them
-- blob              the cases, at most 16 MiB
--
-- Replies {OK, the blob that stands} (not necessarily the caller's), {FENCED}. Writes cases.
local A, bad = args('k:key owner:name fence:int blob:bytes')
if bad then return bad end
if A.blob == '' or #A.blob > 16777216 then return redis.error_reply('COLARG the cases are empty or above 16 MiB') end
local S, broken = load(A.k)
if broken then return broken end
if not S or not own(S, A.owner, A.fence) then return { 'FENCED' } end
local stands = redis.call('GET', S.p.cases)
if stands then return { 'OK', stands } end
redis.call('SET', S.p.cases, A.blob)
keep(S, S.p.cases)
return { 'OK', A.blob }
