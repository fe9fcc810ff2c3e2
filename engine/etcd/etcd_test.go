package etcd_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"penstock/engine"
	"penstock/engine/etcd"
	member "penstock/internal/cluster/etcd"
	"penstock/tests/support/porttest"
)

// Two engines that know only the endpoint of an etcd and a secret are one cluster: one of them delivers a message that
// the other has stored.
func TestEnginesMeetInEtcd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	dir := t.TempDir()
	voters := []member.Voter{{Name: "v", Peer: porttest.Address(t), Client: porttest.Address(t)}}
	m, err := member.Start(member.MemberOptions{
		Name: "v", Voters: voters, Dir: filepath.Join(dir, "etcd"), UnsafeNoFsync: true, Log: quiet,
	})
	check(t, err)
	t.Cleanup(func() { check(t, m.Close()) })
	check(t, m.Ready(ctx))
	secret := filepath.Join(dir, "secret")
	check(t, os.WriteFile(secret, []byte("0123456789012345678901234567890123456789\n"), 0o600))

	var nodes []*engine.Engine
	for _, name := range []string{"a", "b"} {
		metadata, err := etcd.New(etcd.Options{
			Endpoints: []string{"http://" + voters[0].Client}, SecretFile: secret, Logger: quiet,
		})
		check(t, err)
		defer metadata.Close()
		e, err := engine.Open(ctx, engine.Options{
			Path: filepath.Join(dir, name), NodeID: name, Logger: quiet, Cluster: &engine.Cluster{Metadata: metadata},
		})
		check(t, err)
		defer e.Close()
		nodes = append(nodes, e)
	}
	topic, err := nodes[0].CreateTopic(ctx, "orders", engine.TopicOptions{Replicas: 2})
	check(t, err)
	if _, err := topic.Publish(ctx, engine.Message{Body: []byte("tea")}); err != nil {
		t.Fatal(err)
	}
	there, err := nodes[1].Topic(ctx, "orders")
	check(t, err)
	kitchen, err := there.Channel(ctx, "kitchen")
	check(t, err)
	got := ""
	check(t, kitchen.Consume(ctx, engine.ConsumeOptions{}, func(_ context.Context, d *engine.Delivery) error {
		got = string(d.Body)
		cancel()
		return nil
	}))
	if got != "tea" {
		t.Errorf("the other engine delivers %q", got)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
