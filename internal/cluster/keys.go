package cluster

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"penstock/internal/meta"
	"penstock/replicate"
)

// Keys, below Options.Prefix. FORMAT.md describes them and their rows.
const (
	clusterKey    = "cluster"
	lastIDKey     = "ids"
	controllerKey = "controller"
	levelKey      = "level"
	rebalanceKey  = "rebalance"
	restoredKey   = "restored"
	proofKey      = "proof"

	nodesDir      = "nodes/"
	liveDir       = "live/"
	downDir       = "down/"
	topicsDir     = "topics/"
	namesDir      = "names/"
	partsDir      = "parts/"
	creatingDir   = "creating/"
	movesDir      = "moves/"
	deletedDir    = "deleted/"
	tombstonesDir = "tombstones/"
	forcedDir     = "forced/"
)

// Numbers in keys have a fixed width, so that listing one key never lists its longer neighbours.
func nodeKey(dir string, id replicate.NodeID) string { return fmt.Sprintf("%s%010d", dir, id) }

func topicKey(dir string, id uuid.UUID) string { return dir + id.String() }

func partKey(dir string, id meta.PartitionID) string {
	return fmt.Sprintf("%s%s/%06d", dir, id.Topic, id.Partition)
}

func tombstoneKey(k meta.TombstoneKey) string {
	return nodeKey(tombstonesDir+k.Topic+"/", k.Node)
}

func parseNode(s string) (replicate.NodeID, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	return replicate.NodeID(n), err
}

func parsePart(s string) (meta.PartitionID, error) {
	topic, number, _ := strings.Cut(s, "/")
	id, err := uuid.Parse(topic)
	if err != nil {
		return meta.PartitionID{}, err
	}
	n, err := strconv.ParseUint(number, 10, 32)
	return meta.PartitionID{Topic: id, Partition: uint32(n)}, err
}

func parseTombstone(s string) (meta.TombstoneKey, error) {
	topic, node, _ := strings.Cut(s, "/")
	id, err := parseNode(node)
	return meta.TombstoneKey{Topic: topic, Node: id}, err
}

// splitKey splits a key into its folder (for example "nodes/", or "" if it has none) and the rest.
func splitKey(key string) (dir, rest string) {
	i := strings.IndexByte(key, '/')
	return key[:i+1], key[i+1:]
}
