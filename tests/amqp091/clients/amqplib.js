// Connections of amqplib, driven by lines of JSON: {"id": 1, "on": "c1", "do": "connect", …} on standard input is answered
// by {"id": 1, "value": …} or {"id": 1, "error": …, "code": …} on standard output; what the broker sends by itself comes as
// {"on": "c1", "event": "message", …}. Bodies are in base64.
'use strict'

const readline = require('readline')
const amqplib = require('amqplib')

const things = new Map()
const say = (value) => process.stdout.write(JSON.stringify(value) + '\n')
const nothing = () => {}

const message = ({ fields, properties, content }) => ({ fields, properties, body: content.toString('base64') })
const tag = (number) => ({ fields: { deliveryTag: number } })

function tell (name, thing) {
  thing.on('error', (error) => say({ on: name, event: 'closed', code: error.code ?? 0, text: String(error.message) }))
  thing.on('return', (found) => say({ on: name, event: 'returned', ...message(found) }))
}

function publish (channel, { exchange, key, body, options, confirms }) {
  const content = Buffer.from(body, 'base64')
  if (!confirms) {
    channel.publish(exchange, key, content, options)
    return true
  }
  return new Promise((resolve) => channel.publish(exchange, key, content, options, (error) => resolve(!error)))
}

const verbs = {
  async connect (_, { on, options }) {
    const connection = await amqplib.connect(options, { timeout: 15000 })
    connection.on('error', (error) => say({ on, event: 'closed', code: error.code ?? 0, text: String(error.message) }))
    things.set(on, connection)
    return connection.connection.serverProperties.capabilities
  },
  async channel (connection, { name, confirms }) {
    const channel = await (confirms ? connection.createConfirmChannel() : connection.createChannel())
    tell(name, channel)
    things.set(name, channel)
  },
  async close (thing) { await thing.close() },
  drop (connection) {
    connection.removeAllListeners('error')
    connection.on('error', nothing)
    connection.connection.stream.destroy()
  },
  exchange_declare: (channel, { name, type, passive, options }) =>
    passive ? channel.checkExchange(name) : channel.assertExchange(name, type, options),
  exchange_delete: (channel, { name, options }) => channel.deleteExchange(name, options),
  exchange_bind: (channel, { destination, source, key, arguments: args }) =>
    channel.bindExchange(destination, source, key, args),
  exchange_unbind: (channel, { destination, source, key, arguments: args }) =>
    channel.unbindExchange(destination, source, key, args),
  queue_declare: (channel, { name, passive, options }) =>
    passive ? channel.checkQueue(name) : channel.assertQueue(name, options),
  queue_bind: (channel, { queue, exchange, key, arguments: args }) => channel.bindQueue(queue, exchange, key, args),
  queue_unbind: (channel, { queue, exchange, key, arguments: args }) => channel.unbindQueue(queue, exchange, key, args),
  queue_purge: (channel, { queue }) => channel.purgeQueue(queue),
  queue_delete: (channel, { queue, options }) => channel.deleteQueue(queue, options),
  qos: (channel, { count, everybody }) => channel.prefetch(count, everybody),
  async consume (channel, { on, queue, options }) {
    let mine = null
    const early = []
    const found = (one) => {
      if (mine === null) early.push(one)
      else if (one === null) say({ on, event: 'cancelled', tag: mine })
      else say({ on, event: 'message', ...message(one) })
    }
    mine = (await channel.consume(queue, found, options)).consumerTag
    early.forEach(found)
    return mine
  },
  cancel: (channel, { tag: name }) => channel.cancel(name),
  async get (channel, { queue, no_ack: noAck }) {
    const found = await channel.get(queue, { noAck })
    return found === false ? null : message(found)
  },
  ack: (channel, { tag: number, multiple }) => { channel.ack(tag(number), multiple) },
  nack: (channel, { tag: number, multiple, requeue }) => { channel.nack(tag(number), multiple, requeue) },
  reject: (channel, { tag: number, requeue }) => { channel.reject(tag(number), requeue) },
  recover: (channel) => channel.recover(),
  publish,
  async publish_and_close (channel, { all }) {
    all.forEach((one) => { publish(channel, one) })
    await channel.close()
  },
  publish_all: (channel, { all }) => Promise.all(all.map((one) => publish(channel, one)))
}

readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const command = JSON.parse(line)
  try {
    say({ id: command.id, value: await verbs[command.do](things.get(command.on), command) ?? null })
  } catch (error) {
    say({ id: command.id, error: String(error.message || error), code: error.code ?? 0 })
  }
}).on('close', () => process.exit(0))
