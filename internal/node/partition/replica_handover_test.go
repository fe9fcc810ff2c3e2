package partition

import "testing"

// noLog is a commit log that does nothing.
type noLog struct{}

func (noLog) StepOnSpot() bool { return false }
func (noLog) Wake()            {}

// A hand-over that the store has accepted, and of which the replica has not heard, leaves nothing to resume. Raising
// news then would make a node that hands over several partitions try again at once, without end, until another one of
// them is ready.
func TestNothingToResumeIsNoNews(t *testing.T) {
	for name, c := range map[string]struct {
		paused, stored, resumes bool
	}{
		"writes go on":                 {},
		"nobody has taken over":        {paused: true, resumes: true},
		"the store has another leader": {paused: true, stored: true},
	} {
		r := bareReplica()
		r.pt.store.committer.Use(noLog{}, true)
		r.writesPaused, r.state.Version = c.paused, 5
		if c.stored {
			r.handedOver = 5
		}
		news, changed := r.node.above.News().Next(), r.changed.Next()
		r.resumeWrites()
		for what, raised := range map[string]<-chan struct{}{"news": news, "a change": changed} {
			select {
			case <-raised:
				if !c.resumes {
					t.Errorf("%s: %s is raised", name, what)
				}
			default:
			}
		}
		if r.writesPaused != (c.paused && !c.resumes) {
			t.Errorf("%s: writes are paused: %v", name, r.writesPaused)
		}
	}
}
