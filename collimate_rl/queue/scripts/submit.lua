-- submit: payload, state, pending entry and first bell in one step. Sent again, it changes nothing.
--
-- k             the batch's key id
-- queue, run, id, epoch, producer   as in the payload
-- hash          its content_hash
-- n             K, the number of candidates
-- deadline_ms   from now
-- submitted_at  the producer's clock, Unix seconds
-- depth         FULL when so many batches of the queue are unanswered
-- window        WINDOW when so many batches of the run are unanswered
-- bell          fields of the rq job hash as netstrings
-- payload       the packed GradeBatch
--
-- Replies {word, number}:
--   NEW, SAME   the deadline in ms from now; SAME adds the asker and keeps the stored batch, its seeds, its deadline
--   DONE        answered already: read col:done:k
--   CONFLICT    the same (run, epoch, id) with other content
--   FULL        the queue's depth;  WINDOW  the run's count; nothing was written
-- Writes state, batch, askers, pending, inflight, and a bell (rq:job:k-1, rq:queue:queue, rq:queues), turn; run, runs.
local A, bad = args('k:key queue:name run:name id:name epoch:int producer:name hash:hash n:int deadline_ms:int '
  .. 'submitted_at:num depth:int window:int bell:bytes payload:bytes')
if bad then return bad end
if A.n < 1 or A.n > 1024 then return redis.error_reply('COLARG n is not from 1 to 1024') end
local S, broken = load(A.k)
if broken then return broken end
if S then
  if S.hash ~= A.hash then return { 'CONFLICT', 0 } end
  if S.status == 'done' then return { 'DONE', 0 } end
  local stream = 'col:results:' .. A.run .. ':' .. A.producer
  broken = mistyped({ stream, 'stream' })
  if broken then return broken end
  redis.call('SADD', S.p.askers, A.producer)
  keep(S, S.p.askers)
  return { 'SAME', math.max(0, S.deadline_at - S.t) }
end
local t = now()
S = {
  k = A.k, p = keys_of(A.k), t = t, run = A.run, id = A.id, queue = A.queue, n = A.n, rings = 0, bell = A.bell,
  pending = 'col:pending:' .. A.queue, inflight = 'col:inflight:' .. A.run, list = 'rq:queue:' .. A.queue,
  rounds = 'col:turn:' .. A.queue, tail = 'col:turn:' .. A.queue .. ':' .. A.run,
  until_ = t + A.deadline_ms + T.keep_ms,
}
local counted, users = 'col:run:' .. A.queue .. ':' .. A.run, 'col:runs:' .. A.queue
broken = mistyped({
  S.pending, 'zset', S.inflight, 'zset', S.list, 'list', S.tail, 'string', S.rounds, 'hash',
  'col:results:' .. A.run .. ':' .. A.producer, 'stream', counted, 'hash', users, 'zset',
})
if broken then return broken end
local depth = redis.call('ZCARD', S.pending)
if depth >= A.depth then return { 'FULL', depth } end
-- Entries whose keys have expired unanswered (nobody was there to answer) don't count.
local running = redis.call('ZCOUNT', S.inflight, int(t), '+inf')
if running >= A.window then return { 'WINDOW', running } end

redis.call('SET', S.p.batch, A.payload)
redis.call('HSET', S.p.state, 'status', 'open', 'run', A.run, 'id', A.id, 'epoch', int(A.epoch),
  'producer', A.producer, 'queue', A.queue, 'n', int(A.n), 'hash', A.hash, 'owner', '', 'fence', '0',
  'deadline_at', int(t + A.deadline_ms), 'submitted_at', ARGV[10], 'created_at', int(t), 'bell', A.bell)
redis.call('SADD', S.p.askers, A.producer)
for _, key in ipairs({ S.p.batch, S.p.state, S.p.askers }) do keep(S, key) end
redis.call('ZREMRANGEBYSCORE', S.inflight, '-inf', '(' .. int(t))
redis.call('ZADD', S.inflight, int(S.until_), A.k)
redis.call('PEXPIREAT', S.inflight, int(math.max(S.until_, t + 8 * 86400000)))
redis.call('HINCRBY', counted, 'submitted', 1)
redis.call('ZADD', users, int(t), A.run)
for _, key in ipairs({ counted, users }) do redis.call('PEXPIRE', key, int(T.numbers_ms)) end
ring(S, true)
return { 'NEW', A.deadline_ms }
