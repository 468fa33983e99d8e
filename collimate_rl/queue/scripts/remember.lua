-- remember: keeps a verdict in its run's cache, so that the same candidate need not be graded again in this run.
--
-- k, owner, fence   as the claim gave them
-- digest            of all that the verdict follows from (64 hex digits)
-- blob              the packed Verdict
-- room              bytes that a run's cache may hold
--
-- Replies:
--   {KEPT}     it is kept, for T.keep_ms from the run's last one; also when exactly this blob was
--   {STANDS}   another is kept under that digest already, and stays
--   {NO_ROOM}  the run's cache is full; nothing was written
--   {FENCED}   the caller isn't the owner any more; nothing was written
-- Writes the run's cache: digest -> blob, and `bytes`, the sum of their lengths.
local A, bad = args('k:key owner:name fence:int digest:hash blob:bytes room:int')
if bad then return bad end
if A.blob == '' or #A.blob > 1048576 then return redis.error_reply('COLARG the verdict is empty or above 1 MiB') end
local S, broken = load(A.k, 'verdicts')
if broken then return broken end
if not S or not own(S, A.owner, A.fence) then return { 'FENCED' } end
local cache = 'col:cache:' .. S.run
local wrong = mistyped({ cache, 'hash' })
if wrong then return wrong end
local old = redis.call('HGET', cache, A.digest)
if old then return { old == A.blob and 'KEPT' or 'STANDS' } end
local held = tonumber(redis.call('HGET', cache, 'bytes') or '0')
if not held or held + #A.blob > A.room then return { 'NO_ROOM' } end
redis.call('HSET', cache, A.digest, A.blob)
redis.call('HINCRBY', cache, 'bytes', #A.blob)
redis.call('PEXPIRE', cache, int(T.keep_ms))
return { 'KEPT' }
