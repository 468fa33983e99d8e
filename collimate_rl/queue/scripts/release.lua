-- release: the owner gives the batch back.
--
-- k, owner, fence   as the claim gave them
-- mode   clean  rings at once, at the front; counts nothing
--        pass   infrastructure failed here, others shall try: passes + 1, rings at the back after passes * T.backoff_ms
--        later  a message of a version unknown here: the janitor rings after T.later_ms, at the back
--        error  an exception in OUR code: errors + 1, rings at the front after errors * T.backoff_ms; the
--               T.max_errors-th in a row without a verdict answers what is left `internal`
-- drop   1: takes the ledger entries of unjudged candidates out and returns them (their sessions are the caller's
--        to delete)
-- home   1: with clean, a batch that keeps sessions is kept for this node first, as in bury.lua
-- detail for people: why. It stands beside `internal`, and beside `expired` if nobody takes the batch again
--
-- Replies {RELEASED or ANSWERED, index, entry, …}; {FENCED}. A batch that is cancelled or past its deadline is
-- answered instead. Sent again by the same owner: the same reply.
-- Writes state, owned, pending, flight, ledger, homed, bells; after an answer see answer.lua.
local A, bad = args('k:key owner:name fence:int mode:text drop:flag home:flag detail:bytes')
if bad then return bad end
if A.mode ~= 'clean' and A.mode ~= 'pass' and A.mode ~= 'later' and A.mode ~= 'error' then
  return redis.error_reply('COLARG mode is none of clean, pass, later, error')
end
if #A.detail > 4096 then return redis.error_reply('COLARG detail is too long') end
local S, broken = load(A.k)
if broken then return broken end
if not S then return { 'FENCED' } end
local me = A.owner .. ':' .. int(A.fence)
if not own(S, A.owner, A.fence) then
  if S.released_by ~= me then return { 'FENCED' } end
  local again, at = { S.status == 'done' and 'ANSWERED' or 'RELEASED' }, 1
  while at <= #S.released_out do
    local colon = string.find(S.released_out, ':', at, true)
    local size = tonumber(string.sub(S.released_out, at, colon - 1))
    again[#again + 1] = string.sub(S.released_out, colon + 1, colon + size)
    at = colon + size + 1
  end
  return again
end

local reply, kept = { 'RELEASED' }, {}
local ledger = A.drop and redis.call('HGETALL', S.p.ledger) or {}
for j = 1, #ledger, 2 do
  if redis.call('HEXISTS', S.p.verdicts, ledger[j]) == 0 then
    for _, word in ipairs({ ledger[j], ledger[j + 1] }) do
      reply[#reply + 1] = word
      kept[#kept + 1] = #word .. ':' .. word
    end
  end
end
redis.call('HSET', S.p.state, 'released_by', me, 'released_out', table.concat(kept))
for j = 2, #reply, 2 do redis.call('HDEL', S.p.ledger, reply[j]) end
if due_answer(S, A.mode, A.detail) then
  reply[1] = 'ANSWERED'
  return reply
end
if A.mode == 'error' then
  local errors = redis.call('HINCRBY', S.p.state, 'errors', 1)
  if errors >= T.max_errors then
    answer(S, 'internal', A.detail)
    reply[1] = 'ANSWERED'
    return reply
  end
  disown(S, A.mode, A.detail)
  ring_after(S, errors * T.backoff_ms, false)
elseif A.mode == 'pass' then
  local passes = redis.call('HINCRBY', S.p.state, 'passes', 1)
  disown(S, A.mode, A.detail)
  ring_after(S, passes * T.backoff_ms, true)
elseif A.mode == 'later' then
  disown(S, A.mode, A.detail)
  ring_after(S, T.later_ms, true)
else
  disown(S, A.mode, A.detail)
  ring(S, false)
  if A.home then keep_home(S) end
end
return reply
