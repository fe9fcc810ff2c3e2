package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"
)

// penstockTrio is a cluster of three nodes of Penstock. Clients use the node that leads the topic.
type penstockTrio struct {
	proc  *process // penstock dev-cluster, which starts the nodes and ends with them
	nodes map[string]trioNode
	says  string
	leads map[string]string // by topic, the node
}

type trioNode struct {
	Node string `json:"node"`
	PID  int    `json:"pid"`
	NSQ  string `json:"nsq"`
	HTTP string `json:"http"`
}

const (
	trioNodes = 3
	// trioPorts is how many ports dev-cluster uses for a node.
	trioPorts = 10
)

func startPenstockTrio(binary string) func(context.Context, place) (server, error) {
	return func(_ context.Context, at place) (server, error) {
		says, err := penstockVersion(binary)
		if err != nil {
			return nil, err
		}
		base, err := portsInARow(trioNodes * trioPorts)
		if err != nil {
			return nil, err
		}
		c := &penstockTrio{says: says, nodes: map[string]trioNode{}, leads: map[string]string{}}
		c.proc, err = spawn(at.dir, "penstock", nil, binary, "dev-cluster", "--nodes", strconv.Itoa(trioNodes),
			"--data-path", at.dir, "--base-port", strconv.Itoa(base))
		if err != nil {
			return nil, err
		}
		if err := c.proc.await(c.learn); err != nil {
			c.stop()
			return nil, err
		}
		return c, nil
	}
}

// portsInARow finds ports in a row that nobody listens on now, below those that the kernel gives to connections.
func portsInARow(n int) (int, error) {
	const first, last = 20_000, 32_000
	for base := first + os.Getpid()%500*10; base+n < last; base += 10 {
		free := 0
		for ; free < n; free++ {
			l, err := net.Listen("tcp", loopback(base+free))
			if err != nil {
				break
			}
			l.Close()
		}
		if free == n {
			return base, nil
		}
	}
	return 0, fmt.Errorf("there are no %d free ports in a row below %d", n, last)
}

// learn reads from dev-cluster's output which nodes are ready.
func (c *penstockTrio) learn() error {
	text, err := os.ReadFile(c.proc.log)
	if err != nil {
		return err
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		var n trioNode
		if json.Unmarshal(lines.Bytes(), &n) == nil && n.NSQ != "" {
			c.nodes[n.Node] = n
		}
	}
	if len(c.nodes) < trioNodes {
		return fmt.Errorf("%d of %d nodes are ready", len(c.nodes), trioNodes)
	}
	return nil
}

func (c *penstockTrio) version() string { return c.says }
func (c *penstockTrio) stop()           { c.proc.stop() }

func (c *penstockTrio) pids() []int {
	all := make([]int, 0, len(c.nodes))
	for _, n := range c.nodes {
		all = append(all, n.PID)
	}
	return all
}

func (c *penstockTrio) anyNode() *nsqNode {
	for _, n := range c.nodes {
		return &nsqNode{tcp: n.NSQ, http: n.HTTP}
	}
	panic("BUG: peers: a cluster without nodes")
}

// prepare waits until all replicas of the topic are in sync.
func (c *penstockTrio) prepare(topic string, consumed bool) error {
	n := c.anyNode()
	if err := n.prepare(topic, consumed); err != nil {
		return err
	}
	return c.proc.await(func() error {
		leader, err := leaderOf(n.http, topic)
		c.leads[topic] = leader
		return err
	})
}

// leaderOf asks a node who leads the topic's partition. It is an error if not all replicas are in sync.
func leaderOf(address, topic string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get("http://" + address + "/cluster/topics")
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var said struct {
		Topics []struct {
			Name       string `json:"name"`
			Partitions []struct {
				Leader   string   `json:"leader"`
				Replicas []string `json:"replicas"`
				ISR      []string `json:"isr"`
			} `json:"partitions"`
		} `json:"topics"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
		return "", err
	}
	for _, t := range said.Topics {
		if t.Name != topic || len(t.Partitions) != 1 {
			continue
		}
		if p := t.Partitions[0]; p.Leader != "" && len(p.ISR) == trioNodes {
			return p.Leader, nil
		}
	}
	return "", errors.New("topic " + topic + " has no leader with all replicas in sync")
}

func (c *penstockTrio) producer(topic string, acked func(time.Duration, error)) (producer, error) {
	return newNSQProducer(c.nodes[c.leads[topic]].NSQ, topic, acked)
}

func (c *penstockTrio) consume(topic string, handle func([]byte)) (func(), error) {
	return nsqConsume(c.nodes[c.leads[topic]].NSQ, topic, handle)
}
