-- prelude.lua: what every script of the queue shares. Put in front of each, after the block `T` of constants that
-- the loader writes from `protocol.Timing` (milliseconds, and two counts).
--
-- Key names are built here from the batch's k and from what its state says (run, producer, queue), as in
-- `protocol/keys.py`: which keys a script touches is known only once it has read the state. KEYS is always empty,
-- so no Redis Cluster.
--
-- Every script validates its arguments and the types of the keys that it may write BEFORE its first write: a script
-- that fails half way would leave half a change, since Redis does not roll back. Refusals are error replies that
-- begin with COLARG (the caller's mistake) or COLTYPE (a key that is not ours).
--
-- Times are the server's own, in ms (`now`). State fields that count or time are integers written as decimal text.

local NIL = {}

local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

local function int(x)
  return string.format('%d', x)
end

local kinds = {
  key = function(s) return #s == 32 and string.find(s, '^[0-9a-f]+$') ~= nil end,
  hash = function(s) return #s == 64 and string.find(s, '^[0-9a-f]+$') ~= nil end,
  name = function(s) return #s >= 1 and #s <= 128 and string.find(s, '^[%w%._%-]+$') ~= nil end,
  text = function(s) return #s >= 1 and #s <= 1024 end,
  bytes = function(_) return true end,
  int = function(s) return #s <= 15 and string.find(s, '^%d+$') ~= nil end,
  num = function(s) return string.find(s, '^%-?[%d%.]+$') ~= nil and tonumber(s) ~= nil end,
  flag = function(s) return s == '0' or s == '1' end,
}

-- args('k:key fence:int …'): ARGV by name, numbers converted; or nil and the error. A form that ends with '*' takes
-- any number of further arguments, returned as .rest.
local function args(form)
  local out, at, open = {}, 0, false
  for word in string.gmatch(form, '%S+') do
    if word == '*' then
      open = true
    else
      at = at + 1
      local name, kind = string.match(word, '^([%w_]+):(%w+)$')
      local value = ARGV[at]
      if value == nil or not kinds[kind](value) then
        return nil, redis.error_reply('COLARG argument ' .. at .. ' (' .. name .. ') is not of kind ' .. kind)
      end
      if kind == 'int' or kind == 'num' then value = tonumber(value) end
      if kind == 'flag' then value = value == '1' end
      out[name] = value
    end
  end
  if not open and #ARGV ~= at then
    return nil, redis.error_reply('COLARG ' .. at .. ' arguments are needed, not ' .. #ARGV)
  end
  out.rest = {}
  for i = at + 1, #ARGV do out.rest[#out.rest + 1] = ARGV[i] end
  return out
end

-- mistyped({key, type, key, type, …}): the error when a key exists with another type, else nil.
local function mistyped(pairs_)
  for i = 1, #pairs_, 2 do
    local t = redis.call('TYPE', pairs_[i])['ok']
    if t ~= 'none' and t ~= pairs_[i + 1] then
      return redis.error_reply('COLTYPE ' .. pairs_[i] .. ' is a ' .. t .. ', not a ' .. pairs_[i + 1])
    end
  end
end

local TEXT_FIELDS = {
  'status', 'run', 'id', 'producer', 'queue', 'hash', 'owner', 'worker', 'node', 'submitted_at', 'bell',
  'released_by', 'released_out', 'home', 'story', 'obstacle',
}
local INT_FIELDS = {
  'epoch', 'n', 'fence', 'lease_until', 'deadline_at', 'cancel', 'rings', 'unlisted', 'unlisted_at', 'losses',
  'errors', 'passes', 'cautious', 'ring_at', 'ring_back', 'created_at', 'claimed_at', 'home_until',
}

local function keys_of(k)
  return {
    batch = 'col:batch:' .. k, state = 'col:state:' .. k, verdicts = 'col:verdicts:' .. k,
    ledger = 'col:ledger:' .. k, flight = 'col:flight:' .. k, cases = 'col:cases:' .. k,
    askers = 'col:askers:' .. k, done = 'col:done:' .. k,
  }
end

-- load(k): the batch's state with its keys (.p), its askers and the time (.t); nil when there is none;
-- nil and an error when something of it is not as we write it.
-- load(k, 'verdicts', …): for a script that runs once per candidate and writes these hashes and the state alone. Only
-- their types are looked at, and the askers are not read.
local function load(k, ...)
  local p, few = keys_of(k), { ... }
  local look = { p.state, 'hash' }
  for _, name in ipairs(few) do
    look[#look + 1] = p[name]
    look[#look + 1] = 'hash'
  end
  if #few == 0 then
    look = {
      p.state, 'hash', p.batch, 'string', p.verdicts, 'hash', p.ledger, 'hash', p.flight, 'hash', p.cases, 'string',
      p.askers, 'set', p.done, 'string', 'rq:queues', 'set', 'col:quarantine', 'stream',
    }
  end
  local bad = mistyped(look)
  if bad then return nil, bad end
  local texts = redis.call('HMGET', p.state, unpack(TEXT_FIELDS))
  if not texts[1] then return nil end
  local S = { k = k, p = p, t = now() }
  for i, f in ipairs(TEXT_FIELDS) do S[f] = texts[i] or '' end
  for i, v in ipairs(redis.call('HMGET', p.state, unpack(INT_FIELDS))) do
    S[INT_FIELDS[i]] = (not v or v == '') and 0 or tonumber(v)
    if S[INT_FIELDS[i]] == nil then
      return nil, redis.error_reply('COLTYPE field ' .. INT_FIELDS[i] .. ' of ' .. p.state .. ' is no integer')
    end
  end
  if S.run == '' or S.id == '' or S.queue == '' or S.n < 1 then
    return nil, redis.error_reply('COLTYPE ' .. p.state .. ' is no batch of ours')
  end
  S.pending = 'col:pending:' .. S.queue
  S.inflight = 'col:inflight:' .. S.run
  S.list = 'rq:queue:' .. S.queue
  S.rounds = 'col:turn:' .. S.queue
  S.tail = S.rounds .. ':' .. S.run
  S.answers = 'col:answers:' .. S.queue
  S.until_ = S.deadline_at + T.keep_ms
  if #few > 0 then return S end
  S.askers = redis.call('SMEMBERS', p.askers)
  local more = {
    S.pending, 'zset', S.inflight, 'zset', S.list, 'list', S.tail, 'string', S.rounds, 'hash', S.answers, 'stream',
  }
  for _, who in ipairs(S.askers) do
    more[#more + 1] = 'col:results:' .. S.run .. ':' .. who
    more[#more + 1] = 'stream'
  end
  if S.node ~= '' then
    more[#more + 1] = 'col:owned:' .. S.node
    more[#more + 1] = 'hash'
    S.homed = 'col:homed:' .. S.queue .. ':' .. S.node
    more[#more + 1] = S.homed
    more[#more + 1] = 'list'
  end
  bad = mistyped(more)
  if bad then return nil, bad end
  return S
end

local function own(S, owner, fence)
  return S.status == 'running' and S.owner == owner and S.fence == fence
end

local function live(S)
  return S.status == 'running' and S.lease_until > S.t
end

local function check_at(S, at)
  redis.call('ZADD', S.pending, int(at), S.k)
end

-- While it is unanswered, nothing of a batch expires before its deadline and a day.
local function keep(S, key)
  redis.call('PEXPIREAT', key, int(S.until_))
end

-- Runs take turns. Each bell rung at the back is of a round, kept with its job (`round`); the list goes by rounds, and a
-- run has one bell in a round at most. S.rounds holds `now`, the round of the first bell as it was seen last, `top`, the
-- last round that there is, and for each of these the job ids of the bells that were its first and its last to be rung.
-- S.tail is the round of the run's own last bell. So a bell's place is found without a look at the others.

local function whole(x)
  return type(x) == 'string' and #x <= 15 and tonumber(x) or 0
end

-- shut(S, was, at): no round before `at` is left on the list.
local function shut(S, was, at)
  local gone = {}
  if at - was <= redis.call('HLEN', S.rounds) then
    for r = was, at - 1 do gone[#gone + 1] = int(r) end
  else
    for _, r in ipairs(redis.call('HKEYS', S.rounds)) do
      if tonumber(r) and tonumber(r) < at then gone[#gone + 1] = r end
    end
  end
  for i = 1, #gone, 1000 do redis.call('HDEL', S.rounds, unpack(gone, i, math.min(i + 999, #gone))) end
end

-- turn(S): where the last bell of a round is gone, or rounds are unknown, the job id before which a bell of this run goes:
-- the first bell of whichever run has one after the run's own last already. nil for the back, also where LOOK_AHEAD bells
-- don't decide.
local LOOK_AHEAD = 512
local function turn(S)
  local seen = {}
  for first = 0, LOOK_AHEAD - 1, 32 do
    local jids = redis.call('LRANGE', S.list, first, first + 31)
    for _, jid in ipairs(jids) do
      local run = redis.pcall('HGET', 'col:state:' .. string.sub(jid, 1, 32), 'run')
      if run == S.run then
        seen = {}
      elseif type(run) == 'string' then
        if seen[run] then return jid end
        seen[run] = true
      end
    end
    if #jids < 32 then return nil end
  end
  return nil
end

-- in_turn(S, jid): puts a bell on the list. It goes behind all others of its round: the one after the run's last, and not
-- one that the list has begun with already, so that nobody who comes late goes before all who wait.
local function in_turn(S, jid)
  local head, held = redis.call('LINDEX', S.list, 0), redis.call('HMGET', S.rounds, 'now', 'top')
  local was, top = whole(held[1]), whole(held[2])
  local at, known = top + 1, top > 0 or not head
  local least = at
  if head then
    at = math.max(was, whole(redis.pcall('HGET', 'rq:job:' .. head, 'round')))
    top = math.max(top, at)
    local first = redis.call('HGET', S.rounds, int(at))
    first = first and string.match(first, '^%S+')
    least = first == head and at or at + 1
  end
  if at > was then shut(S, was, at) end
  local r = math.min(math.max(least, whole(redis.call('GET', S.tail)) + 1), top + 1)
  local first, last = string.match(redis.call('HGET', S.rounds, int(r)) or '', '^(%S+) (%S+)$')
  if known and r >= top then
    redis.call('RPUSH', S.list, jid)
  elseif not last or redis.call('LINSERT', S.list, 'AFTER', last, jid) < 1 then
    local before = turn(S)
    if before then
      redis.call('LINSERT', S.list, 'BEFORE', before, jid)
    else
      redis.call('RPUSH', S.list, jid)
    end
  end
  redis.call('HSET', S.rounds, 'now', int(at), 'top', int(math.max(top, r)), int(r), (first or jid) .. ' ' .. jid)
  redis.call('PEXPIRE', S.rounds, int(T.bell_ms))
  redis.call('HSET', 'rq:job:' .. jid, 'round', int(r))
  redis.call('SET', S.tail, int(r), 'PX', int(T.bell_ms))
end

-- bell(S): one more bell, an rq job of its own id k-n, on no list yet. Its fields were made once, at submit, by rq's own
-- Job.to_dict(); they are kept as netstrings ("3:abc") in the state.
local function bell(S)
  S.rings = S.rings + 1
  local jid = S.k .. '-' .. int(S.rings)
  local fields, at = {}, 1
  while at <= #S.bell do
    local colon = string.find(S.bell, ':', at, true)
    local size = tonumber(string.sub(S.bell, at, colon - 1))
    fields[#fields + 1] = string.sub(S.bell, colon + 1, colon + size)
    at = colon + size + 1
  end
  redis.call('HSET', 'rq:job:' .. jid, unpack(fields))
  redis.call('HSET', 'rq:job:' .. jid, 'description', S.run .. '/' .. S.id .. ' #' .. int(S.rings))
  redis.call('PEXPIRE', 'rq:job:' .. jid, int(T.bell_ms))
  return jid
end

-- ring(S, back): one more bell at the front or, `back`, in its run's turn.
local function ring(S, back)
  local jid = bell(S)
  redis.call('SADD', 'rq:queues', S.list)
  if back then
    in_turn(S, jid)
  else
    redis.call('LPUSH', S.list, jid)
  end
  redis.call('HSET', S.p.state, 'rings', int(S.rings), 'unlisted', '0', 'unlisted_at', '0', 'ring_at', '0')
  check_at(S, S.t + T.recheck_ms)
end

-- keep_home(S): after disown and ring. Where the ledger names a session of a candidate without a verdict, only the node of
-- the last owner may claim the batch for a while; a bell waits on that node's own list, which its workers look at first.
local function keep_home(S)
  local sessions = false
  for _, i in ipairs(redis.call('HKEYS', S.p.ledger)) do
    if redis.call('HEXISTS', S.p.verdicts, i) == 0 then sessions = true end
  end
  if not sessions then return end
  redis.call('RPUSH', S.homed, bell(S))
  redis.call('PEXPIRE', S.homed, int(T.bell_ms))
  local at = S.t + T.home_ms
  redis.call('HSET', S.p.state, 'rings', int(S.rings), 'home', S.node, 'home_until', int(at), 'ring_at', int(at),
    'ring_back', '0')
  check_at(S, at)
end

-- ring_after(S, ms, back): no bell yet; `mend` rings when the time has come.
local function ring_after(S, ms, back)
  local at = S.t + ms
  redis.call('HSET', S.p.state, 'ring_at', int(at), 'ring_back', back and '1' or '0')
  check_at(S, at)
end

-- tell(S, word): the batch's story with one turn more, for people: ms, word, fence, node, worker (protocol/story.py).
local MAX_STORY = 24
local function tell(S, word)
  S.story = S.story .. int(S.t) .. ' ' .. word .. ' ' .. int(S.fence) .. ' ' .. S.node .. ' ' .. S.worker .. '\n'
  local _, turns = string.gsub(S.story, '\n', '')
  if turns > MAX_STORY then S.story = string.gsub(S.story, '^[^\n]*\n', '') end
  return S.story
end

-- short(s): a text for people of MAX_SHORT bytes at most, cut between two characters.
local MAX_SHORT = 500
local function short(s)
  if #s <= MAX_SHORT then return s end
  return (string.gsub(string.sub(s, 1, MAX_SHORT), '[\192-\255][\128-\191]*$', '')) .. '...'
end

-- ended(S, word, detail): for people, how the turn of the batch's owner ended; `detail` is what the owner said.
local function ended(S, word, detail)
  if word == 'lost' then return 'its worker on node ' .. S.node .. ' fell silent' end
  if word == 'buried' then return 'its worker on node ' .. S.node .. ' died' end
  return 'node ' .. S.node .. ' gave it back' .. (detail ~= '' and ': ' .. short(detail) or '')
end

-- disown(S, word, detail): nobody's again; `word` says how its owner's turn ended, and `detail` (see `ended`) why.
-- Marked starts were the last owner's.
local function disown(S, word, detail)
  if S.node ~= '' and redis.call('HGET', 'col:owned:' .. S.node, S.worker) == S.k then
    redis.call('HDEL', 'col:owned:' .. S.node, S.worker)
  end
  if S.status == 'running' then
    tell(S, word)
    if word ~= 'answered' then
      S.obstacle = ended(S, word, detail or '')
      redis.call('HSET', S.p.state, 'obstacle', S.obstacle)
    end
  end
  redis.call('HSET', S.p.state, 'status', 'open', 'owner', '', 'lease_until', '0', 'story', S.story)
  redis.call('DEL', S.p.flight)
  S.status, S.owner, S.lease_until = 'open', '', 0
end

-- settled(queue, t): beats have come for T.settle_ms without a gap, so that whoever lives has had time to renew.
local function settled(queue, t)
  local v = redis.call('HMGET', 'col:clock:' .. queue, 'last', 'since')
  local last, since = tonumber(v[1]), tonumber(v[2])
  return last ~= nil and since ~= nil and t - last <= T.gap_ms and t - since >= T.settle_ms
end

local function blames(S)
  local names = {}
  for i = 0, S.n - 1 do names[#names + 1] = 'blame:' .. i end
  local out = redis.call('HMGET', S.p.state, unpack(names))
  for i = 1, S.n do out[i] = tonumber(out[i] or '0') or 0 end
  return out
end

-- loss(S, uncounted): its owner is gone. Counts, unless the caller knows better, only when the worker's alive key is gone
-- too: a worker that is merely slow is no evidence against a candidate. The first loss blames every unjudged candidate and makes the batch cautious; later
-- ones blame what was marked as started (every unjudged one if nothing was). Returns true when no candidate is left
-- that may still run: all are judged, or quarantined.
local function loss(S, uncounted)
  if redis.call('HLEN', S.p.verdicts) == S.n then return true end
  if uncounted then return false end
  if S.worker ~= '' and redis.call('EXISTS', 'col:alive:' .. S.worker) == 1 then return false end
  S.losses = redis.call('HINCRBY', S.p.state, 'losses', 1)
  local judged, marked, any = {}, {}, false
  for _, i in ipairs(redis.call('HKEYS', S.p.verdicts)) do judged[i] = true end
  if S.cautious == 1 then
    for _, i in ipairs(redis.call('HKEYS', S.p.flight)) do
      if not judged[i] then marked[i], any = true, true end
    end
  end
  local blame, runnable = blames(S), 0
  for n = 0, S.n - 1 do
    local i = int(n)
    if not judged[i] then
      if marked[i] or not any then
        blame[n + 1] = blame[n + 1] + 1
        redis.call('HSET', S.p.state, 'blame:' .. i, int(blame[n + 1]))
        if blame[n + 1] == T.max_blame then
          redis.call('XADD', 'col:quarantine', 'MAXLEN', '~', '1000', '*', 'k', S.k, 'index', i, 'run', S.run,
            'id', S.id, 'queue', S.queue, 'node', S.node, 'worker', S.worker)
          redis.call('PEXPIRE', 'col:quarantine', int(T.quarantine_ms))
        end
      end
      if blame[n + 1] < T.max_blame then runnable = runnable + 1 end
    end
  end
  redis.call('HSET', S.p.state, 'cautious', '1')
  S.cautious = 1
  return runnable == 0
end
