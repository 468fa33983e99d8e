-- answer.lua: how a batch is answered. Put after the prelude in the scripts that can do it.
--
-- The result (docs/reference/queue.md) is written here as msgpack, byte by byte: the verdicts are packed already and go in as
-- they are, a nil must be sent as nil, and nothing depends on a codec library of the server.

local function pack_uint(bytes, n)
  local out = {}
  for i = bytes - 1, 0, -1 do out[#out + 1] = string.char(math.floor(n / 256 ^ i) % 256) end
  return table.concat(out)
end

local function pack_int(n)
  if n < 128 then return string.char(n) end
  return string.char(0xcf) .. pack_uint(8, n)
end

local function pack_float(x)
  if x == 0 then return string.char(0xcb) .. string.rep('\0', 8) end
  local sign = x < 0 and 0x8000 or 0
  local m, e = math.frexp(math.abs(x))
  local frac = (m * 2 - 1) * 2 ^ 52
  local high = math.floor(frac / 2 ^ 48)
  return string.char(0xcb) .. pack_uint(2, sign + (e + 1022) * 16 + high) .. pack_uint(6, frac - high * 2 ^ 48)
end

local function pack_str(s)
  if #s < 32 then return string.char(0xa0 + #s) .. s end
  return string.char(0xdb) .. pack_uint(4, #s) .. s
end

-- pack_map({name, packed value, name, packed value, …})
local function pack_map(items)
  local out = { string.char(0xde) .. pack_uint(2, #items / 2) }
  for i = 1, #items, 2 do
    out[#out + 1] = pack_str(items[i])
    out[#out + 1] = items[i + 1]
  end
  return table.concat(out)
end

local PACKED_NIL, PACKED_FALSE, PACKED_TRUE = string.char(0xc0), string.char(0xc2), string.char(0xc3)

-- The answer of a candidate without a verdict: flagged, no reward.
local function pack_infra(S, index, code, detail)
  local zero, empty = pack_float(0), pack_str('')
  return pack_map({
    'v', pack_int(1), 'index', pack_int(index), 'reward', PACKED_NIL, 'infra_error', PACKED_TRUE,
    'error_code', pack_str(code), 'outcome', PACKED_NIL, 'cases', PACKED_NIL,
    'cases_total', pack_int(0), 'cases_passed', pack_int(0), 'integrity', pack_str('split'),
    'detail', detail == '' and PACKED_NIL or pack_str(detail),
    'output_tail', string.char(0xc4, 0), 'truncated', PACKED_FALSE, 'seed', empty, 'seed_ack', empty,
    'session_id', PACKED_NIL, 'node', pack_str(S.node), 'attempt', pack_int(S.fence),
    'fork_time_ms', zero, 'exec_time_ms', zero, 'judge_time_ms', zero, 'queue_ms', zero,
    'recovered', pack_str('none'), 'grader_version', empty, 'flags', string.char(0x90),
  })
end

-- So many answers wait for being counted, at most; a janitor counts them every few seconds.
local MAX_ANSWERS = 20000

-- A result of so many bytes goes along in the entry that tells a producer of it, which then needs not ask for it.
local MAX_CARRIED = 16384

local STATUS_OF = { expired = 'expired', cancelled = 'cancelled', quarantined = 'quarantined' }

-- answer(S, fill, detail, infra): the one place where a batch becomes done.
--   fill    code for candidates that have neither a verdict nor an entry in `infra`, and why the batch is answered now;
--           nil when every one has
--   detail  for people, beside that code ('' for none)
--   infra   index (text) to packed infra-flagged answer, given by a worker; they are no verdicts
-- A candidate whose blame reached T.max_blame is answered `quarantined` whatever the rest gets.
-- Verdicts stand. Writes `done`, tells every asker, raises the fence so that the last owner is refused. One entry goes
-- to the queue's stream of answers, to be counted from (tally.lua): an answer is never counted twice, nor forgotten.
local function answer(S, fill, detail, infra)
  local k, p, n = S.k, S.p, S.n
  local names = {}
  for i = 0, n - 1 do names[#names + 1] = int(i) end
  local blobs = redis.call('HMGET', p.verdicts, unpack(names))
  local blame = S.cautious == 1 and blames(S) or {}
  local flagged, poisoned = 0, 0
  for i = 1, n do
    if not blobs[i] then
      flagged = flagged + 1
      if (blame[i] or 0) >= T.max_blame then
        poisoned = poisoned + 1
        blobs[i] = pack_infra(S, i - 1, 'quarantined', 'it cost its workers their lives ' .. blame[i] .. ' times')
      elseif infra and infra[names[i]] then
        blobs[i] = infra[names[i]]
      else
        blobs[i] = pack_infra(S, i - 1, fill or 'internal', detail or '')
      end
    end
  end
  local status = 'partial'
  if fill and flagged > poisoned then
    status = STATUS_OF[fill] or 'failed'
  elseif flagged == 0 then
    status = 'graded'
  elseif poisoned == flagged then
    status = 'quarantined'
  end
  local submitted = tonumber(S.submitted_at) or 0
  local result = pack_map({
    'v', pack_int(1), 'run', pack_str(S.run), 'id', pack_str(S.id), 'epoch', pack_int(S.epoch),
    'status', pack_str(status), 'results', string.char(0xdd) .. pack_uint(4, n) .. table.concat(blobs),
    'submitted_at', pack_float(submitted), 'queued_at', pack_float(S.created_at / 1000),
    'story', pack_str(S.story),
    'claimed_at', S.claimed_at > 0 and pack_float(S.claimed_at / 1000) or PACKED_NIL,
    'finished_at', pack_float(S.t / 1000), 'attempts', pack_int(S.fence), 'worker', pack_str(S.worker),
  })
  -- The first write may be refused for want of memory; the script then ends with nothing changed.
  redis.call('SET', p.done, result, 'PX', int(T.keep_ms))
  disown(S, 'answered')
  S.fence = S.fence + 1
  redis.call('HSET', p.state, 'status', 'done', 'fence', int(S.fence), 'answered', status, 'finished_at', int(S.t))
  redis.call('ZREM', S.pending, k)
  redis.call('ZREM', S.inflight, k)
  redis.call('XADD', S.answers, 'MAXLEN', '~', int(MAX_ANSWERS), '*', 'k', k, 'run', S.run, 'id', S.id,
    'status', status, 'n', int(n), 'flagged', int(flagged),
    'wait', S.claimed_at > 0 and int(math.max(0, S.claimed_at - S.created_at)) or '',
    'took', int(math.max(0, S.t - S.created_at)))
  redis.call('PEXPIRE', S.answers, int(T.keep_ms))
  for _, who in ipairs(S.askers) do
    local stream = 'col:results:' .. S.run .. ':' .. who
    local entry = { 'k', k, 'id', S.id, 'epoch', int(S.epoch), 'status', status }
    if #result <= MAX_CARRIED then entry[9], entry[10] = 'done', result end
    redis.call('XADD', stream, '*', unpack(entry))
    redis.call('PEXPIRE', stream, int(T.keep_ms))
  end
  for _, key in ipairs({ p.state, p.verdicts, p.ledger, p.cases, p.askers }) do
    redis.call('PEXPIRE', key, int(T.keep_ms))
  end
  redis.call('PEXPIRE', p.batch, int(poisoned > 0 and T.quarantine_ms or T.keep_ms))
  S.status = 'done'
end

-- why_expired(S, word, detail): for people, what kept the batch until its deadline. Where it is owned, `word` and `detail`
-- say how that ended; else it is how its last owner's turn did, whether nodes serve the queue, and the last obstacle that
-- one of them named (beat.lua) while the batch waited. Nothing here may fail: writes went before.
local function why_expired(S, word, detail)
  local told = 'the deadline of ' .. string.format('%g', (S.deadline_at - S.created_at) / 1000) .. ' s passed'
  if S.status == 'running' then return told .. ': ' .. ended(S, word or 'lost', detail or '') end
  local nodes = redis.pcall('ZCOUNT', 'col:nodes:' .. S.queue, int(S.t), '+inf')
  if S.obstacle ~= '' then
    told = told .. ' while it waited to be taken again: ' .. S.obstacle
  elseif type(nodes) ~= 'number' or nodes == 0 then
    told = told .. ' while it waited in the queue: no node serves queue ' .. S.queue
  else
    told = told .. ' while it waited in the queue: ' .. (nodes == 1 and 'the node' or 'none of the ' .. int(nodes) .. ' nodes')
      .. ' that served it ' .. (nodes == 1 and 'did not take it' or 'took it')
  end
  local said = redis.pcall('HMGET', 'col:clock:' .. S.queue, 'obstacle_at', 'obstacle_node', 'obstacle')
  local at = tonumber(said[1])
  if not (at and said[2] and said[3]) or at < S.created_at or string.find(told, said[3], 1, true) then return told end
  local after = int(math.floor((at - S.created_at) / 1000))
  return told .. '; node ' .. said[2] .. ' said ' .. after .. ' s after the submit: ' .. said[3]
end

-- due_answer(S, word, detail): answers a batch that is cancelled or past its deadline; true when it did. `word` and
-- `detail` as in why_expired.
local function due_answer(S, word, detail)
  local code = S.cancel == 1 and 'cancelled' or (S.t > S.deadline_at and 'expired' or nil)
  if not code then return false end
  answer(S, code, code == 'expired' and why_expired(S, word, detail) or '')
  return true
end
