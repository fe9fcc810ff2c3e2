package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	kafkaGroup = "bench"
	// kafkaHeap and the other flags are those of Kafka's own start script.
	kafkaHeap  = "-Xmx1G -Xms1G"
	kafkaFlags = "-server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 " +
		"-XX:+ExplicitGCInvokesConcurrent -Djava.awt.headless=true"
	// mavenCopy names an exact version, so that every run uses the same plugin.
	mavenCopy = "org.apache.maven.plugins:maven-dependency-plugin:2.8:copy-dependencies"
)

var (
	//go:embed kafka/pom.xml
	kafkaPOM []byte
	//go:embed kafka/sha256
	kafkaSums string
)

// kafkaBrokers runs one or three brokers, each of which is also a controller (KRaft). Each topic has one partition, and
// each subscription is a consumer group.
type kafkaBrokers struct {
	procs []*process
	seeds []string
	flush bool // every message, on every broker, before it is acknowledged
}

func startKafka(nodes int, flush bool) func(context.Context, place) (server, error) {
	return func(_ context.Context, at place) (server, error) {
		java, err := exec.LookPath("java")
		if err != nil {
			return nil, err
		}
		jars, err := findKafka(at.cache)
		if err != nil {
			return nil, err
		}
		ports, err := freePorts(2 * nodes)
		if err != nil {
			return nil, err
		}
		k := &kafkaBrokers{flush: flush}
		for i := range nodes {
			if err := k.startBroker(at.dir, java, jars, ports, i); err != nil {
				k.stop()
				return nil, err
			}
		}
		if err := k.procs[0].await(func() error { return k.ready(nodes) }); err != nil {
			k.stop()
			return nil, err
		}
		return k, nil
	}
}

// findKafka returns the class path of the brokers. Maven copies the jars into the cache; each must have the sum that is
// listed.
func findKafka(cache string) (string, error) {
	lib := filepath.Join(cache, "kafka")
	if checkSums(lib, kafkaSums) == nil {
		return filepath.Join(lib, "*"), nil
	}
	if err := errors.Join(os.RemoveAll(lib), os.MkdirAll(lib, 0o755)); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp("", "penstock-peers-kafka-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := os.WriteFile(filepath.Join(work, "pom.xml"), kafkaPOM, 0o644); err != nil {
		return "", err
	}
	if err := run(work, "mvn", "-q", "-B", mavenCopy, "-DincludeScope=runtime", "-DoutputDirectory="+lib); err != nil {
		return "", fmt.Errorf("the jars of Kafka cannot be had: %w", err)
	}
	return filepath.Join(lib, "*"), checkSums(lib, kafkaSums)
}

// kafkaConfig is a broker's configuration; what it does not name has Kafka's default. The first half of the ports is
// for clients, the second for controllers.
func kafkaConfig(dir string, ports []int, self int) string {
	nodes := len(ports) / 2
	var voters []string
	for i, port := range ports[nodes:] {
		voters = append(voters, fmt.Sprintf("%d@%s", i+1, loopback(port)))
	}
	return strings.Join([]string{
		"process.roles=broker,controller",
		fmt.Sprintf("node.id=%d", self+1),
		"controller.quorum.voters=" + strings.Join(voters, ","),
		"controller.listener.names=CONTROLLER",
		fmt.Sprintf("listeners=PLAINTEXT://%s,CONTROLLER://%s", loopback(ports[self]), loopback(ports[nodes+self])),
		"log.dirs=" + dir,
		fmt.Sprintf("offsets.topic.replication.factor=%d", nodes),
		"offsets.topic.num.partitions=1", // so that a cluster is ready sooner
		"group.initial.rebalance.delay.ms=0",
		"auto.create.topics.enable=false",
		"",
	}, "\n")
}

// startBroker formats a broker's directory and starts it.
func (k *kafkaBrokers) startBroker(dir, java, jars string, ports []int, self int) error {
	name := fmt.Sprintf("broker%d", self+1)
	file := filepath.Join(dir, name+".properties")
	if err := os.WriteFile(file, []byte(kafkaConfig(filepath.Join(dir, name), ports, self)), 0o600); err != nil {
		return err
	}
	const cluster = "cGVuc3RvY2stcGVlcnMtMQ" // any 16 bytes
	err := run(dir, java, "-cp", jars, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", file)
	if err != nil {
		return err
	}
	args := append(strings.Fields(kafkaHeap+" "+kafkaFlags), "-cp", jars, "kafka.Kafka", file)
	p, err := spawn(dir, name, nil, java, args...)
	if err != nil {
		return err
	}
	k.procs = append(k.procs, p)
	k.seeds = append(k.seeds, loopback(ports[self]))
	return nil
}

func (k *kafkaBrokers) client(opts ...kgo.Opt) (*kgo.Client, error) {
	// By default the client waits 10 ms for further messages, which would be the latency that is measured; and it
	// compresses, which random bodies only make slower.
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(k.seeds...), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	}, opts...)...)
}

// ready says whether all brokers answer, and the cluster can make a topic.
func (k *kafkaBrokers) ready(nodes int) error {
	c, err := k.client()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	brokers, err := kadm.NewClient(c).ListBrokers(ctx)
	if err != nil {
		return err
	}
	if len(brokers) < nodes {
		return fmt.Errorf("%d of %d brokers are there", len(brokers), nodes)
	}
	return nil
}

func (k *kafkaBrokers) version() string {
	for line := range strings.Lines(kafkaSums) {
		if _, jar, ok := strings.Cut(strings.TrimSpace(line), "kafka-server-common-"); ok {
			return strings.TrimSuffix(jar, ".jar")
		}
	}
	return "unknown"
}

func (k *kafkaBrokers) pids() []int {
	all := make([]int, len(k.procs))
	for i, p := range k.procs {
		all[i] = p.cmd.Process.Pid
	}
	return all
}

// stop kills the brokers. In a controlled shutdown the last broker would wait for the others, which have ended.
func (k *kafkaBrokers) stop() {
	for _, p := range k.procs {
		p.kill()
	}
}

// prepare makes a topic and waits until all of its replicas are in sync. A topic keeps its messages, consumed or not.
func (k *kafkaBrokers) prepare(topic string, _ bool) error {
	c, err := k.client()
	if err != nil {
		return err
	}
	defer c.Close()
	admin, nodes := kadm.NewClient(c), len(k.procs)
	config, one, enough := map[string]*string{}, "1", fmt.Sprint(nodes/2+1)
	config["min.insync.replicas"] = &enough
	if k.flush {
		config["flush.messages"] = &one
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if _, err := admin.CreateTopic(ctx, 1, int16(nodes), config, topic); err != nil {
		return err
	}
	return k.procs[0].await(func() error {
		topics, err := admin.ListTopics(ctx, topic)
		if err != nil {
			return err
		}
		p := topics[topic].Partitions[0]
		if p.Err != nil || p.Leader < 0 || len(p.ISR) < nodes {
			return fmt.Errorf("partition 0 of %s: leader %d, in sync %v, error %w", topic, p.Leader, p.ISR, p.Err)
		}
		return nil
	})
}

// kafkaProducer is a client. It produces on one connection, to the partition's leader.
type kafkaProducer struct {
	c     *kgo.Client
	acked func(time.Duration, error)
}

func (k *kafkaBrokers) producer(topic string, acked func(time.Duration, error)) (producer, error) {
	c, err := k.client(kgo.DefaultProduceTopic(topic))
	if err != nil {
		return nil, err
	}
	return &kafkaProducer{c: c, acked: acked}, nil
}

func (p *kafkaProducer) publish(body []byte) error {
	return p.c.ProduceSync(context.Background(), &kgo.Record{Value: body}).FirstErr()
}

func (p *kafkaProducer) publishBatch(bodies [][]byte) error {
	records := make([]*kgo.Record, len(bodies))
	for i, b := range bodies {
		records[i] = &kgo.Record{Value: b}
	}
	return p.c.ProduceSync(context.Background(), records...).FirstErr()
}

func (p *kafkaProducer) publishAsync(body []byte, sent time.Duration) error {
	p.c.Produce(context.Background(), &kgo.Record{Value: body}, func(_ *kgo.Record, err error) { p.acked(sent, err) })
	return nil
}

func (p *kafkaProducer) close() { p.c.Close() }

// consume marks each message as processed. Kafka stores only the consumer's position in the log, which the client
// commits every five seconds.
func (k *kafkaBrokers) consume(topic string, handle func([]byte)) (func(), error) {
	c, err := k.client(kgo.ConsumerGroup(kafkaGroup), kgo.ConsumeTopics(topic), kgo.AutoCommitMarks(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			c.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				handle(r.Value)
				c.MarkCommitRecords(r)
			})
		}
	}()
	return func() {
		cancel()
		<-ended
		c.Close()
	}, nil
}
