-- verdict: writes verdicts of candidates, each once and for all.
--
-- k, owner, fence   as the claim gave them
-- *                 index, packed Verdict, …: at least one pair
--
-- Replies with a word for each pair, in their order:
--   ACCEPTED  it stands; also when exactly this blob stood already, whoever asks
--   STANDS    another verdict stands, and stays
--   FENCED    none stands, and the caller isn't the owner any more; it was not written
-- Writes the verdicts; ends those candidates' exposure (their marks), and a row of errors.
local A, bad = args('k:key owner:name fence:int *')
if bad then return bad end
if #A.rest == 0 or #A.rest % 2 == 1 then
  return redis.error_reply('COLARG verdicts come in pairs of index and blob, at least one')
end
local S, broken = load(A.k, 'verdicts', 'flight')
if broken then return broken end
local words = {}
if not S then
  for j = 1, #A.rest, 2 do words[#words + 1] = 'FENCED' end
  return words
end
for j = 1, #A.rest, 2 do
  local i, blob = A.rest[j], A.rest[j + 1]
  if not kinds.int(i) or tonumber(i) >= S.n then
    return redis.error_reply('COLARG index is none, or beyond the last candidate')
  end
  if blob == '' or #blob > 1048576 then return redis.error_reply('COLARG the verdict is empty or above 1 MiB') end
end
local mine, ended = own(S, A.owner, A.fence), {}
for j = 1, #A.rest, 2 do
  local i, blob = int(tonumber(A.rest[j])), A.rest[j + 1]
  local old = redis.call('HGET', S.p.verdicts, i)
  if old then
    words[#words + 1] = old == blob and 'ACCEPTED' or 'STANDS'
  elseif not mine then
    words[#words + 1] = 'FENCED'
  else
    redis.call('HSET', S.p.verdicts, i, blob)
    words[#words + 1], ended[#ended + 1] = 'ACCEPTED', i
  end
end
if #ended > 0 then
  keep(S, S.p.verdicts)
  redis.call('HDEL', S.p.flight, unpack(ended))
  if S.errors > 0 then redis.call('HSET', S.p.state, 'errors', '0') end
end
return words
