-- publish: answers the batch, once. Each candidate needs a verdict, or an infra-flagged answer given here, or `fill`.
--
-- k, owner, fence   as the claim gave them
-- fill              code for every candidate that has neither ('' for none: then such a candidate is MISSING).
--                   expired and cancelled give the result that status, any other code `failed`
-- detail            for people, beside that code
-- *                 index, packed infra-flagged answer, …; one for a candidate that has a verdict is ignored
--
-- Replies:
--   {OK}         answered
--   {ALREADY}    it had been, perhaps by this very call sent before
--   {FENCED}     not the owner any more
--   {MISSING, indices…}  nothing was written
-- A candidate blamed T.max_blame times is answered `quarantined` by itself. Writes: see answer.lua.
local A, bad = args('k:key owner:name fence:int fill:bytes detail:bytes *')
if bad then return bad end
if #A.rest % 2 == 1 then return redis.error_reply('COLARG answers come in pairs of index and blob') end
if #A.fill > 128 or #A.detail > 4096 then return redis.error_reply('COLARG fill or detail is too long') end
local S, broken = load(A.k)
if broken then return broken end
if not S then return { 'FENCED' } end
if S.status == 'done' then return { 'ALREADY' } end
if not own(S, A.owner, A.fence) then return { 'FENCED' } end
local infra = {}
for j = 1, #A.rest, 2 do
  local i = A.rest[j]
  if not kinds.int(i) or tonumber(i) >= S.n or A.rest[j + 1] == '' then
    return redis.error_reply('COLARG an answer has no candidate, or is empty')
  end
  infra[int(tonumber(i))] = A.rest[j + 1]
end
if A.fill == '' then
  local missing, blame = { 'MISSING' }, S.cautious == 1 and blames(S) or {}
  for n = 0, S.n - 1 do
    local given = infra[int(n)] or (blame[n + 1] or 0) >= T.max_blame
    if not given and redis.call('HEXISTS', S.p.verdicts, int(n)) == 0 then missing[#missing + 1] = n end
  end
  if #missing > 1 then return missing end
end
answer(S, A.fill ~= '' and A.fill or nil, A.detail, infra)
return { 'OK' }
