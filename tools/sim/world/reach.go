package world

// Missing names what these runs have not brought about, of what seeds of a campaign are for. What is rare happens once
// in a hundred of them, so a few hundred runs miss nothing. Command sim asks, of its new seeds.
func (s *Stats) Missing() (what []string) {
	for _, r := range []struct {
		what  string
		count int
	}{
		{"answers", s.Acked},
		{"refusals", s.Refused},
		{"unknown outcomes", s.Unknown},
		{"redeliveries", s.Redelivered},
		{"deliveries through other nodes", s.Remote},
		{"elections", s.Elections},
		{"changes of an ISR", s.ISRChanges},
		{"leases that were lost", s.LostLeases},
		{"kills", s.Kills},
		{"power cuts", s.Crashes},
		{"orderly stops", s.Stops},
		{"cut links", s.Cuts},
		{"pauses", s.Pauses},
		{"clocks that were set", s.ClockSteps},
		{"nodes that died for good", s.Corpses},
		{"nodes that ran twice", s.Twins},
		{"copies that forgot", s.Forgotten},
		{"disk faults", s.DiskFaults},
		{"slow disks", s.Slow},
		{"disks that hang", s.Hung},
		{"disks that fail for long", s.Failing},
		{"bits that rotted", s.Rotten},
		{"full disks", s.Full},
		{"full disks that copy on write", s.NoRoom},
		{"nodes that were up with a damaged commit log", s.Poisoned},
		{"moves", s.Moves},
		{"moves that were undone", s.Undone},
		{"replicas that came back", s.Back},
		{"changes of replicas", s.Resized},
		{"replicas that were removed", s.Shrunk},
		{"moves of rebalances", s.Evened},
		{"orders to hand over", s.Ordered},
		{"orders that were carried out", s.Transferred},
		{"deleted topics", s.Deleted},
		{"topics that were made again", s.Remade},
		{"partitions that topics got", s.Expanded},
		{"nodes that were removed", s.Removed},
		{"nodes that came back after that", s.Returned},
		{"clusters that were raised", s.Raised},
		{"histories that were compacted", s.Compacted},
		{"changes of settings", s.Configured},
		{"refusals by a quota", s.OverQuota},
		{"messages that retention took unread", s.Dropped},
		{"dead letters", s.DeadLetters},
		{"dead letters that were sent back", s.Redriven},
		{"messages that were carried", s.Carried},
		{"messages that a filter left out", s.Unwanted},
		{"messages of a sample", s.Sampled},
		{"puts within the bound", s.Bound},
		{"publishers that began", s.Opened},
		{"puts that were sent again", s.Repeats},
		{"puts of ghosts", s.Haunted},
		{"forks", s.Forked},
		{"native clients", s.Native},
		{"messages that were read again", s.Replayed},
		{"segments that go from topics that keep something", s.KeptGone},
	} {
		if r.count == 0 {
			what = append(what, r.what)
		}
	}
	return what
}
