-- gist: what there is to count in the results of answered batches, without their texts: these would be most of what
-- counting costs. Reads only.
--
-- *   key ids
--
-- Replies {…, …}, for each key id in order: {GONE} where no result is, or it cannot be read; {BIG} where it is above
-- MAX_BYTES, so that taking it apart would keep others waiting; else {OK, six texts per candidate}: the reward ('' where it
-- is infra-flagged), the error code, the outcome, the node, how it was recovered, and its flags with commas between them.
local A, bad = args('*')
if bad then return bad end
local MAX_BYTES = 524288
for _, k in ipairs(A.rest) do
  if not kinds.key(k) then return redis.error_reply('COLARG ' .. k .. ' is no key id') end
end

local function words(verdict, into)
  local flags = {}
  for _, flag in ipairs(verdict.flags or {}) do flags[#flags + 1] = tostring(flag) end
  into[#into + 1] = verdict.infra_error and '' or string.format('%.17g', verdict.reward)
  into[#into + 1] = tostring(verdict.error_code or '')
  into[#into + 1] = tostring(verdict.outcome or '')
  into[#into + 1] = tostring(verdict.node or '')
  into[#into + 1] = tostring(verdict.recovered or 'none')
  into[#into + 1] = table.concat(flags, ',')
end

-- The server's own reader of msgpack knows no bytes, so that these are stepped over here. Offsets begin at 0.
local function big(raw, at, size)
  local n = 0
  for i = at + 1, at + size do n = n * 256 + string.byte(raw, i) end
  return n
end

local function one(raw, at)
  local kind = string.byte(raw, at + 1)
  if kind == 0xc4 or kind == 0xc5 or kind == 0xc6 then
    local size = 2 ^ (kind - 0xc4)
    return at + 1 + size + big(raw, at + 1, size), nil
  end
  return cmsgpack.unpack_one(raw, at)
end

-- The head of a map or list: where its first part begins, and how many it has.
local function open(raw, at)
  local kind = string.byte(raw, at + 1)
  if kind >= 0x80 and kind <= 0x9f then return at + 1, kind % 16 end
  if kind == 0xdc or kind == 0xde then return at + 3, big(raw, at + 1, 2) end
  if kind == 0xdd or kind == 0xdf then return at + 5, big(raw, at + 1, 4) end
  error('neither a map nor a list')
end

-- As our own writers order a verdict, this many fields come before `output_tail`, the only one of bytes: then a
-- verdict is read in two goes. Any other order is read field by field.
local BEFORE = 11
local function gather(verdict, at, ...)
  local parts = { ... }
  for i = 1, select('#', ...) - 1, 2 do
    if type(parts[i]) ~= 'string' then error('a field without a name') end
    verdict[parts[i]] = parts[i + 1]
  end
  return at, select(select('#', ...), ...)
end

local function before_tail(raw, at, verdict)
  local after, last = gather(verdict, cmsgpack.unpack_limit(raw, 2 * BEFORE + 1, at))
  return last == 'output_tail' and after or nil
end

local function gist(raw)
  local out, at, fields, name = { 'OK' }
  at, fields = open(raw, 0)
  for _ = 1, fields do
    at, name = one(raw, at)
    if name == 'results' then
      local count, parts, value
      at, count = open(raw, at)
      for _ = 1, count do
        local verdict = {}
        at, parts = open(raw, at)
        local first, after = pcall(before_tail, raw, at, verdict)
        local left = parts
        if first and after then
          at, left = one(raw, after), parts - BEFORE - 1
          at = gather(verdict, cmsgpack.unpack_limit(raw, 2 * left, at))
          left = 0
        end
        for _ = 1, left do
          at, name = one(raw, at)
          at, value = one(raw, at)
          verdict[name] = value
        end
        words(verdict, out)
      end
      return out
    end
    at = one(raw, at)
  end
  error('no results')
end

local found = {}
for _, k in ipairs(A.rest) do
  local key = 'col:done:' .. k
  local size = redis.pcall('STRLEN', key)
  if type(size) ~= 'number' or size == 0 then
    found[#found + 1] = { 'GONE' }
  elseif size > MAX_BYTES then
    found[#found + 1] = { 'BIG' }
  else
    local sound, out = pcall(gist, redis.call('GET', key))
    found[#found + 1] = sound and out or { 'GONE' }
  end
end
return found
