"""Publishes three orders and consumes them, with pynsq."""
import argparse
import asyncio
import ssl

import nsq

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument('--nodes', default='127.0.0.1:4150', help='NSQ addresses of nodes, separated by commas')
parser.add_argument('--lookups', default='127.0.0.1:4161', help='lookup addresses of nodes, separated by commas')
parser.add_argument('--ca', help="PEM file with the authority of the nodes' certificates; turns TLS on")
parser.add_argument('--token-file', help='file with the token to log in with')


def connection_options(args):
    options = {}
    if args.ca:
        options['tls_v1'] = True
        options['tls_options'] = {'ssl_version': ssl.PROTOCOL_TLS_CLIENT, 'ca_certs': args.ca}
    if args.token_file:
        with open(args.token_file) as file:
            options['auth_secret'] = file.read().strip()
    return options


async def publish(writer, topic, body):
    """Returns when the message is on stable storage.

    A writer with several nodes takes any that it is connected to. After a lost connection the message may be stored
    twice: consumers have to bear that.
    """
    for _ in range(100):
        answer = asyncio.get_running_loop().create_future()
        writer.pub(topic, body, callback=lambda connection, data, answer=answer: answer.set_result(data))
        result = await answer
        if result == b'OK':
            return
        await asyncio.sleep(0.1)  # there is no connection yet, or it was lost, or the node refused
    raise result


async def consume(topic, channel, count, lookups, options):
    """Prints so many messages of a channel."""
    bodies = asyncio.Queue()

    def handle(message):
        bodies.put_nowait(message.body)
        return True  # the message is finished; False requeues it

    reader = nsq.Reader(topic, channel, message_handler=handle, lookupd_http_addresses=lookups,
                        lookupd_poll_interval=5, **options)
    for _ in range(count):
        print('consumed:', (await bodies.get()).decode())
    reader.close()


async def main():
    args = parser.parse_args()
    options = connection_options(args)
    writer = nsq.Writer(args.nodes.split(','), **options)
    for i in range(3):
        order = f'order {i + 1}'
        await publish(writer, 'orders', order.encode())
        print('stored:', order)
    await consume('orders', 'billing', 3, args.lookups.split(','), options)


asyncio.run(main())
