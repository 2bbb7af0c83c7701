// Sessions of MQTT.js, driven by lines of JSON: {"id": 1, "session": "a", "do": "open", …} on standard input is answered by
// {"id": 1, …} or {"id": 1, "error": …, "code": …} on standard output; messages come as {"session": "a", "message": {…}}.
// Payloads are in base64.
'use strict'

const fs = require('fs')
const readline = require('readline')
const mqtt = require('mqtt')

const sessions = new Map()
const say = (value) => process.stdout.write(JSON.stringify(value) + '\n')
const bytes = (text) => Buffer.from(text, 'base64')

function toProperties (given) {
  const made = {}
  if (given.user.length > 0) {
    // an object cannot hold the same name twice: such values become a list
    made.userProperties = {}
    for (const [name, value] of given.user) {
      const before = made.userProperties[name]
      made.userProperties[name] = before === undefined ? value : [].concat(before, value)
    }
  }
  if (given.response_topic !== null) made.responseTopic = given.response_topic
  if (given.correlation_data !== null) made.correlationData = bytes(given.correlation_data)
  if (given.content_type !== null) made.contentType = given.content_type
  return Object.keys(made).length > 0 ? made : undefined
}

function fromProperties (found) {
  const user = []
  for (const [name, value] of Object.entries(found.userProperties || {})) {
    for (const one of [].concat(value)) user.push([name, one])
  }
  return {
    user,
    response_topic: found.responseTopic ?? null,
    correlation_data: found.correlationData ? found.correlationData.toString('base64') : null,
    content_type: found.contentType ?? null
  }
}

function open (name, command, done, failed) {
  const { version, clean, expiry_s: expiry, will } = command
  const options = {
    clientId: command.client_id,
    protocolVersion: version === 5 ? 5 : 4,
    clean,
    reconnectPeriod: 100,
    username: command.username ?? undefined,
    password: command.password ?? undefined
  }
  if (version === 5) options.properties = { sessionExpiryInterval: expiry }
  if (will !== null) options.will = { topic: will.topic, payload: bytes(will.payload), qos: will.qos, retain: will.retain }
  if (command.ca) options.ca = fs.readFileSync(command.ca)
  if (command.cert) options.cert = fs.readFileSync(command.cert)
  if (command.key) options.key = fs.readFileSync(command.key)
  const client = mqtt.connect(command.url, options)
  const session = { client, waiting: [] }
  sessions.set(name, session)
  let settled = false
  client.on('message', (topic, payload, packet) => say({
    session: name,
    message: {
      topic, payload: payload.toString('base64'), qos: packet.qos, retain: packet.retain,
      properties: fromProperties(packet.properties || {})
    }
  }))
  client.on('error', (error) => {
    if (settled) return
    settled = true
    client.end(true)
    failed(error)
  })
  client.once('connect', () => {
    settled = true
    if (command.filters.length === 0) return done()
    const wanted = {}
    for (const [filter, qos] of command.filters) wanted[filter] = { qos }
    client.subscribe(wanted, (error) => error ? failed(error) : done())
  })
}

// MQTT.js does not count what the broker's Receive Maximum allows, so this does.
const UNACKNOWLEDGED_MAX = 200

function publishAll (client, { topic, payloads, qos }) {
  return new Promise((resolve, reject) => {
    let [next, waiting] = [0, 0]
    const acknowledged = (error) => {
      // 0x92 for a PUBREL that was sent again: the handshake had ended, and its PUBCOMP was lost with the connection
      if (error && error.code !== 0x92) return reject(error)
      waiting--
      go()
    }
    const go = () => {
      if (next === payloads.length && waiting === 0) return resolve()
      while (next < payloads.length && waiting < UNACKNOWLEDGED_MAX) {
        waiting++
        client.publish(topic, bytes(payloads[next++]), { qos }, acknowledged)
      }
    }
    go()
  })
}

const verbs = {
  open,
  publish ({ client }, command, done, failed) {
    const { topic, payload, qos, retain, properties } = command.message
    client.publish(topic, bytes(payload), { qos, retain, properties: toProperties(properties) },
      (error) => error ? failed(error) : done())
  },
  publish_all (session, command, done, failed) {
    session.waiting.push(publishAll(session.client, command))
    done()
  },
  settle (session, command, done, failed) {
    Promise.all(session.waiting).then(() => { session.waiting = []; done() }, failed)
  },
  close ({ client }, command, done) {
    client.end(false, {}, () => done())
  },
  drop ({ client }, command, done) {
    client.options.reconnectPeriod = 0
    if (!client.connected || client.stream.destroyed) return client.end(true, {}, () => done())
    client.stream.once('close', () => client.end(true, {}, () => done()))
    client.stream.destroy()
  }
}

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const command = JSON.parse(line)
  const done = () => say({ id: command.id })
  const failed = (error) => say({ id: command.id, error: String(error.message || error), code: error.code ?? null })
  const first = command.do === 'open' ? command.session : sessions.get(command.session)
  verbs[command.do](first, command, done, failed)
}).on('close', () => process.exit(0))
