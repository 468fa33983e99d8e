-- note: enters in the ledger where a candidate's session lives. To be acknowledged BEFORE the first exec in it.
--
-- k, owner, fence   as the claim gave them
-- index             the candidate
-- entry             packed: session, node, endpoint, exec id
-- *                 nothing, or the session's id and the node whose daemon has it: kept in `sessions`, which says that
--                   a session was noted once
--
-- Replies {OK, entry that it replaced, or ''}; {FENCED}, with a session id {FENCED, 1 when that session was noted
-- before (by this very call, sent again after its reply was lost): then it is not the caller's to delete, else 0}.
-- Sent again: the same, and nothing replaced. Writes the ledger, sessions.
local A, bad = args('k:key owner:name fence:int index:int entry:bytes *')
if bad then return bad end
local session, node = A.rest[1], A.rest[2]
if #A.rest ~= 0 and (#A.rest ~= 2 or not kinds.text(session) or not kinds.name(node)) then
  return redis.error_reply('COLARG a session and its node are needed, or neither')
end
local sessions = session and 'col:sessions:' .. node
local S, broken = load(A.k, 'ledger')
if broken then return broken end
broken = session and mistyped({ sessions, 'zset' })
if broken then return broken end
if not S or not own(S, A.owner, A.fence) then
  if not session then return { 'FENCED' } end
  return { 'FENCED', redis.call('ZSCORE', sessions, session) and 1 or 0 }
end
if A.index >= S.n then return redis.error_reply('COLARG index is beyond the last candidate') end
if A.entry == '' then return redis.error_reply('COLARG the entry is empty') end
local old = redis.call('HGET', S.p.ledger, int(A.index))
redis.call('HSET', S.p.ledger, int(A.index), A.entry)
keep(S, S.p.ledger)
if session then
  redis.call('ZADD', sessions, int(S.t), session)
  redis.call('ZREMRANGEBYSCORE', sessions, '-inf', int(S.t - T.keep_ms))
  redis.call('PEXPIRE', sessions, int(T.keep_ms))
end
return { 'OK', (old and old ~= A.entry) and old or '' }
