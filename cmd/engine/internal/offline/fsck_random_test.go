package offline

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"penstock/internal/node"
)

// Whatever a node did before it ended, fsck finds its directory clean, as the node does when it starts again: with
// messages, without any that somebody may still get, and with topics that are deleted.
func TestRandomDirectoriesAreClean(t *testing.T) {
	ctx := context.Background()
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 47))
		dir := filepath.Join(t.TempDir(), "data")
		for range 3 {
			e, err := node.Open(ctx, small(dir))
			must(err)
			for range 1 + rng.IntN(8) {
				topic, err := e.Topic(ctx, string(rune('a'+rng.IntN(3))))
				must(err)
				c, err := topic.Channel(ctx, "c")
				must(err)
				switch rng.IntN(6) {
				case 0:
					must(c.Empty(ctx))
				case 1:
					settings := topic.Settings()
					settings.RetentionBytes = 100 << 10
					_, err := topic.ConfigureAs(ctx, "", settings)
					must(err)
				case 2:
					must(e.DeleteTopic(ctx, topic.Name()))
				default:
					bodies := make([][]byte, 1+rng.IntN(10))
					for i := range bodies {
						bodies[i] = make([]byte, rng.IntN(20_000))
					}
					for range 1 + rng.IntN(20) {
						_, err := topic.PublishBatch(ctx, bodies)
						must(err)
					}
				}
			}
			must(e.Close())
			if code, out, errs := fsck(t, dir); code != 0 {
				t.Fatalf("seed %d: exit code %d: %s%s", seed, code, out, errs)
			}
		}
	}
}
