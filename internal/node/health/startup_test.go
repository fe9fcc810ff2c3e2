package health

import "testing"

func TestStartup(t *testing.T) {
	var nobody *Startup
	nobody.Enter("x")
	nobody.Count(1, 2)
	nobody.Bytes(3)
	nobody.Note("x")
	s := new(Startup)
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, "has just begun"},
		{func() { s.Enter("reads the commit log") }, "reads the commit log"},
		{func() { s.Bytes(1 << 20); s.Bytes(1 << 19) }, "reads the commit log: 1.5 MiB"},
		{func() { s.Bytes(-1) }, "reads the commit log: 0.0 MiB"},
		{func() { s.Enter("opens topics"); s.Count(3, 10) }, "opens topics: 3 of 10"},
		{func() { s.Enter("joins the cluster") }, "joins the cluster"},
		{func() { s.Note("a certificate has ended") }, "joins the cluster; a certificate has ended"},
	} {
		if step.do(); s.Stage() != step.want {
			t.Errorf("%q, want %q", s.Stage(), step.want)
		}
	}
}
