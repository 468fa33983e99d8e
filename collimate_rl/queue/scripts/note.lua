-- note: enters in the ledger where a candidate's session lives. To be acknowledged BEFORE the first exec in it.
--
-- k, owner, fence   as the claim gave them
-- index             the candidate
-- entry             packed: session, node, endpoint, exec id
--
-- Replies {OK, entry that it replaced, or ''}; {FENCED}. Sent again: the same, and nothing replaced.
-- Writes the ledger.
local A, bad = args('k:key owner:name fence:int index:int entry:bytes')
if bad then return bad end
local S, broken = load(A.k)
if broken then return broken end
if not S or not own(S, A.owner, A.fence) then return { 'FENCED' } end
if A.index >= S.n then return redis.error_reply('COLARG index is beyond the last candidate') end
if A.entry == '' then return redis.error_reply('COLARG the entry is empty') end
local old = redis.call('HGET', S.p.ledger, int(A.index))
redis.call('HSET', S.p.ledger, int(A.index), A.entry)
keep(S, S.p.ledger)
return { 'OK', (old and old ~= A.entry) and old or '' }
