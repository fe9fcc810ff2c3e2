package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	redisGroup = "bench"
	// redisRead is how many messages a consumer asks for at once, and has unacknowledged at most.
	redisRead = 1000
	// redisPackages are what redis-server of Debian's packages needs beside what every system has.
	redisPackages = "redis-server redis-tools libjemalloc2 liblua5.1-0 liblzf1 lua-cjson lua-bitop"
)

// redisServer is a redis-server whose append-only file is on; a topic is a stream, a subscription a group of it.
type redisServer struct {
	proc    *process
	address string
	says    string
}

// startRedis starts redis-server with an append-only file and nothing else on the disk. It is not rewritten during the
// measurement, which is in favour of Redis.
func startRedis(fsync string) func(context.Context, place) (server, error) {
	return func(ctx context.Context, at place) (server, error) {
		binary, env, err := findRedis(at.cache)
		if err != nil {
			return nil, err
		}
		ports, err := freePorts(1)
		if err != nil {
			return nil, err
		}
		r := &redisServer{address: loopback(ports[0])}
		r.proc, err = spawn(at.dir, "redis", env, binary,
			"--port", strconv.Itoa(ports[0]), "--bind", "127.0.0.1", "--dir", at.dir, "--save", "", "--appendonly", "yes",
			"--appendfsync", fsync, "--auto-aof-rewrite-percentage", "0")
		if err != nil {
			return nil, err
		}
		c := r.client()
		defer c.Close()
		if err := r.proc.await(func() error { return c.Ping(ctx).Err() }); err != nil {
			r.stop()
			return nil, err
		}
		info, err := c.Info(ctx, "server").Result()
		if err != nil {
			r.stop()
			return nil, err
		}
		for line := range strings.Lines(info) {
			if v, ok := strings.CutPrefix(line, "redis_version:"); ok {
				r.says = strings.TrimSpace(v)
			}
		}
		return r, nil
	}
}

// findRedis takes the redis-server that is installed. Otherwise it downloads Debian's packages and unpacks them into
// the cache: nothing is installed, and no service starts.
func findRedis(cache string) (binary string, env []string, err error) {
	if binary, err = exec.LookPath("redis-server"); err == nil {
		return binary, nil, nil
	}
	root := filepath.Join(cache, "redis")
	if binary, env, err = unpackedRedis(root); err == nil {
		return binary, env, nil
	}
	parts := root + ".parts"
	if err := errors.Join(os.RemoveAll(parts), os.MkdirAll(parts, 0o700)); err != nil {
		return "", nil, err
	}
	defer os.RemoveAll(parts)
	if err := run(parts, "apt-get", append([]string{"download"}, strings.Fields(redisPackages)...)...); err != nil {
		return "", nil, fmt.Errorf("redis-server is not installed, and its packages cannot be had: %w", err)
	}
	packages, err := filepath.Glob(filepath.Join(parts, "*.deb"))
	if err != nil {
		return "", nil, err
	}
	for _, p := range packages {
		if err := run(parts, "dpkg-deb", "-x", p, root); err != nil {
			return "", nil, err
		}
	}
	return unpackedRedis(root)
}

func unpackedRedis(root string) (binary string, env []string, err error) {
	binary = filepath.Join(root, "usr/bin/redis-server")
	if _, err := os.Stat(binary); err != nil {
		return "", nil, err
	}
	libraries, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-*"))
	if err != nil {
		return "", nil, err
	}
	return binary, []string{"LD_LIBRARY_PATH=" + strings.Join(libraries, ":")}, nil
}

// run runs a command in a directory; its output is part of the error.
func run(dir, command string, args ...string) error {
	cmd := exec.Command(command, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", command, err, bytes.TrimSpace(out))
	}
	return nil
}

func (r *redisServer) client() *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: r.address, PoolSize: 1, MaxRetries: -1, ReadTimeout: time.Minute, DisableIdentity: true,
		// One pipeline may hold all that the work allows to be outstanding on a connection.
		AutoPipelineOptions: &redis.AutoPipelineOptions{MaxBatchSize: maxWindow, MaxConcurrentBatches: 1},
		PipelinePoolSize:    -1,
	})
}

func (r *redisServer) version() string { return r.says }
func (r *redisServer) pids() []int     { return []int{r.proc.cmd.Process.Pid} }
func (r *redisServer) stop()           { r.proc.stop() }

func (r *redisServer) prepare(topic string, consumed bool) error {
	if !consumed {
		return nil // XADD makes the stream
	}
	c := r.client()
	defer c.Close()
	return c.XGroupCreateMkStream(context.Background(), topic, redisGroup, "0").Err()
}

// redisProducer is a client with one connection.
type redisProducer struct {
	c     *redis.Client
	topic string
	auto  *redis.AutoPipeliner
	sent  chan redisSent // in the order of the commands
	acked func(time.Duration, error)
}

type redisSent struct {
	cmd *redis.StringCmd
	at  time.Duration
}

func (r *redisServer) producer(topic string, acked func(time.Duration, error)) (producer, error) {
	p := &redisProducer{c: r.client(), topic: topic, sent: make(chan redisSent, maxWindow), acked: acked}
	if err := p.c.Ping(context.Background()).Err(); err != nil {
		return nil, err
	}
	var err error
	if p.auto, err = p.c.AsyncAutoPipeline(); err != nil {
		return nil, err
	}
	go func() {
		for s := range p.sent {
			acked(s.at, s.cmd.Err()) // waits for the answer
		}
	}()
	return p, nil
}

func (p *redisProducer) entry(body []byte) *redis.XAddArgs {
	return &redis.XAddArgs{Stream: p.topic, Values: []any{"b", body}}
}

func (p *redisProducer) publish(body []byte) error {
	return p.c.XAdd(context.Background(), p.entry(body)).Err()
}

func (p *redisProducer) publishBatch(bodies [][]byte) error {
	_, err := p.c.Pipelined(context.Background(), func(pipe redis.Pipeliner) error {
		for _, b := range bodies {
			pipe.XAdd(context.Background(), p.entry(b))
		}
		return nil
	})
	return err
}

func (p *redisProducer) publishAsync(body []byte, sent time.Duration) error {
	p.sent <- redisSent{p.auto.XAdd(context.Background(), p.entry(body)), sent}
	return nil
}

func (p *redisProducer) close() {
	close(p.sent)
	_ = p.c.Close()
}

// consume reads and acknowledges in turn, as a loop around XREADGROUP does. Each message has an XACK of its own; those
// of what one read brought are pipelined.
func (r *redisServer) consume(topic string, handle func([]byte)) (func(), error) {
	ctx, cancel := context.WithCancel(context.Background())
	c := r.client()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			read, err := c.XReadGroup(ctx, &redis.XReadGroupArgs{
				Group: redisGroup, Consumer: "one", Streams: []string{topic, ">"}, Count: redisRead, Block: 100 * time.Millisecond,
			}).Result()
			if err != nil || len(read) == 0 {
				continue // nothing came, or the end
			}
			_, _ = c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				for _, m := range read[0].Messages {
					body, _ := m.Values["b"].(string)
					handle([]byte(body))
					pipe.XAck(ctx, topic, redisGroup, m.ID)
				}
				return nil
			})
		}
	}()
	return func() {
		cancel()
		<-ended
		_ = c.Close()
	}, nil
}
