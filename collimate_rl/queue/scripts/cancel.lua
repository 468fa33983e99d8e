-- cancel: asks the owner to stop, or answers at once where nobody owns the batch.
--
-- k   the batch's key id
--
-- Replies {ASKED} (the owner learns it at its next renewal), {ANSWERED}, {DONE}, {GONE}. Verdicts that stand, stand.
-- Writes state.cancel; after an answer see answer.lua.
local A, bad = args('k:key')
if bad then return bad end
local S, broken = load(A.k)
if broken then return broken end
if not S then return { 'GONE' } end
if S.status == 'done' then return { 'DONE' } end
redis.call('HSET', S.p.state, 'cancel', '1')
if live(S) then return { 'ASKED' } end
S.cancel = 1
due_answer(S)
return { 'ANSWERED' }
