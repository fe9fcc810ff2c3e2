// Publishes three orders and consumes them, with nsqjs.
'use strict'
const fs = require('fs')
const { parseArgs } = require('util')
const nsq = require('nsqjs')

const { values: args } = parseArgs({
  options: {
    nodes: { type: 'string', default: '127.0.0.1:4150' }, // NSQ addresses, separated by commas
    lookups: { type: 'string', default: '127.0.0.1:4161' }, // lookup addresses, separated by commas
    ca: { type: 'string' }, // PEM file with the authority of the nodes' certificates; turns TLS on
    'token-file': { type: 'string' }
  }
})
const options = {}
if (args.ca) Object.assign(options, { tls: true, ca: fs.readFileSync(args.ca) })
if (args['token-file']) options.authSecret = fs.readFileSync(args['token-file'], 'utf8').trim()

// connect resolves to a writer that is connected to one of the nodes: any takes messages for any topic.
async function connect () {
  let last
  for (const node of args.nodes.split(',')) {
    const [host, port] = node.split(':')
    const writer = new nsq.Writer(host, Number(port), options)
    try {
      await new Promise((resolve, reject) => {
        writer.on(nsq.Writer.READY, resolve)
        writer.on(nsq.Writer.ERROR, reject)
        writer.connect()
      })
      return writer
    } catch (error) {
      writer.close()
      last = error
    }
  }
  throw last
}

// publish resolves when the message is on stable storage. After an error it may be stored all the same: a program that
// publishes it again may store it twice.
function publish (writer, topic, body) {
  return new Promise((resolve, reject) => {
    writer.publish(topic, body, error => (error ? reject(error) : resolve()))
  })
}

// consume prints so many messages of a channel.
function consume (topic, channel, count) {
  return new Promise(resolve => {
    const reader = new nsq.Reader(topic, channel, {
      lookupdHTTPAddresses: args.lookups.split(','), lookupdPollInterval: 5, ...options
    })
    reader.on(nsq.Reader.ERROR, error => console.error(error))
    reader.on(nsq.Reader.MESSAGE, message => {
      console.log('consumed:', message.body.toString())
      message.finish() // or message.requeue()
      if (--count === 0) {
        setTimeout(() => { // close() drops what nsqjs has not sent yet
          reader.close()
          resolve()
        }, 200)
      }
    })
    reader.connect()
  })
}

async function main () {
  const writer = await connect()
  for (let i = 1; i <= 3; i++) {
    await publish(writer, 'orders', `order ${i}`)
    console.log('stored:', `order ${i}`)
  }
  await consume('orders', 'billing', 3)
  writer.close()
}

main().catch(error => {
  console.error(error)
  process.exit(1)
})
