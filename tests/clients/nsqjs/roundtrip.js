// roundtrip.js NSQD_HOST:PORT LOOKUPD_HOST:PORT[,...] TOPIC COUNT [tls|snappy|deflate]
//
// Publishes one by one, in batches and with a delay, subscribes by the lookup service, requeues what it sees first, touches
// another and finishes everything. Prints what it saw as JSON.
'use strict'
const nsq = require('nsqjs')

const [nsqd, lookupds, topic, countText, wire] = process.argv.slice(2)
const count = Number(countText)
const options = {}
if (wire === 'tls') Object.assign(options, { tls: true, tlsVerification: false })
if (wire === 'snappy') options.snappy = true
if (wire === 'deflate') Object.assign(options, { deflate: true, deflateLevel: 6 })

const seen = new Map()
const result = { messages: 0, redelivered: 0, deferredAfterMs: 0, errors: [] }
let deferredAt = 0

function fail (err) {
  result.errors.push(String(err))
}

function publish (writer, body, delay) {
  return new Promise((resolve, reject) => {
    const done = err => (err ? reject(err) : resolve())
    if (delay) writer.deferPublish(topic, [body], delay, done)
    else writer.publish(topic, body, done)
  })
}

async function publishAll (writer) {
  const single = Math.floor(count / 2)
  for (let i = 0; i < single; i++) await publish(writer, 'm' + i)
  const rest = []
  for (let i = single; i < count; i++) rest.push('m' + i)
  await publish(writer, rest)
  deferredAt = Date.now()
  await publish(writer, 'late', 300)
}

function handle (msg) {
  const body = msg.body.toString()
  if (body === 'm0' && msg.attempts === 1) {
    msg.requeue(0, false)
    return
  }
  if (msg.attempts > 1) result.redelivered++
  if (body === 'm1') msg.touch()
  if (body === 'late') result.deferredAfterMs = Date.now() - deferredAt
  seen.set(body, (seen.get(body) || 0) + 1)
  msg.finish()
}

function end () {
  result.messages = seen.size
  console.log(JSON.stringify(result))
  process.exit(result.errors.length === 0 && seen.size === count + 1 ? 0 : 1)
}

const [host, port] = nsqd.split(':')
const writer = new nsq.Writer(host, Number(port), options)
writer.on(nsq.Writer.ERROR, fail)
writer.on(nsq.Writer.READY, async () => {
  try {
    await publishAll(writer)
  } catch (err) {
    fail(err)
    end()
  }
  const reader = new nsq.Reader(topic, 'nsqjs', Object.assign({
    lookupdHTTPAddresses: lookupds.split(','), lookupdPollInterval: 1, lookupdPollJitter: 0.1, maxInFlight: 50
  }, options))
  reader.on(nsq.Reader.ERROR, fail)
  reader.on(nsq.Reader.MESSAGE, handle)
  reader.connect()
})
writer.connect()

const started = Date.now()
setInterval(() => {
  if (seen.size === count + 1) setTimeout(end, 200) // nothing may come after everything was finished
  if (Date.now() - started > 40000) {
    fail('not everything came within 40 s')
    end()
  }
}, 50)
