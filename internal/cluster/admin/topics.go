package admin

import (
	"context"
	"fmt"
	"net/http"

	"penstock/batch"
	"penstock/internal/meta"
	"penstock/internal/node/names"
	"penstock/replicate"
)

// Bodies of the commands on topics.
type (
	// CreateTopic is the body of /cluster/create-topic. Without Partitions or Replicas, the settings of the node that
	// gets the request decide.
	CreateTopic struct {
		Topic      string `json:"topic"`
		Partitions int    `json:"partitions"`
		Replicas   int    `json:"replicas"`
	}
	// SetReplicas is the body of /cluster/set-replicas; Replicas is the new number of each partition.
	SetReplicas struct {
		Topic    string `json:"topic"`
		Replicas int    `json:"replicas"`
	}
)

func (h *handler) createTopic(ctx context.Context, s *meta.Snapshot, b *CreateTopic) (string, error) {
	switch {
	case b.Topic == "":
		return "", refuse(http.StatusBadRequest, "topic is missing")
	case !names.ValidTopic(b.Topic):
		return "", refuse(http.StatusBadRequest, "%q cannot name a topic: 1 to 64 letters, digits, dots, underscores and "+
			"hyphens can", b.Topic)
	case b.Partitions < 0 || b.Partitions > batch.MaxPartition+1:
		return "", refuse(http.StatusBadRequest, "a topic has 1 to %d partitions, not %d",
			batch.MaxPartition+1, b.Partitions)
	case b.Replicas < 0 || b.Replicas > replicate.MaxReplicaCount:
		return "", refuse(http.StatusBadRequest, "a topic has 1 to %d replicas, not %d", replicate.MaxReplicaCount,
			b.Replicas)
	case s.Names[b.Topic] != nil:
		return "", refuse(http.StatusConflict, "there is a topic %s already: nothing was changed", b.Topic)
	case h.self.Create == nil:
		return "", refuse(http.StatusNotFound, "node %s cannot create topics", h.self.Name)
	}
	if err := h.self.Create(ctx, b.Topic, b.Partitions, b.Replicas); err != nil {
		return "", err
	}
	t := h.store.Snapshot().Names[b.Topic]
	if t == nil {
		return fmt.Sprintf("topic %s was created, and deleted again meanwhile", b.Topic), nil
	}
	return fmt.Sprintf("topic %s was created with %s of %s each", b.Topic,
		counted(t.Partitions, "partition"), counted(t.Replicas, "replica")), nil
}

func (h *handler) setReplicas(ctx context.Context, s *meta.Snapshot, b *SetReplicas) (string, error) {
	t, err := topicNamed(s, b.Topic)
	if err != nil {
		return "", err
	}
	if b.Replicas < 1 || b.Replicas > replicate.MaxReplicaCount {
		return "", refuse(http.StatusBadRequest, "a topic has 1 to %d replicas, not %d: nothing was changed",
			replicate.MaxReplicaCount, b.Replicas)
	}
	now, err := h.store.SetReplicas(ctx, t.ID, b.Replicas)
	if err != nil {
		return "", err
	}
	if now != nil {
		t = now
	}
	how := "replicas are added as they have caught up, and removed when all that stay are in sync"
	return fmt.Sprintf("topic %s has %s of each partition from now on, and min_isr %d: %s",
		t.Name, counted(t.Replicas, "replica"), t.MinISR, how), nil
}

func counted(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case noun == "batch":
		noun = "batche"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
