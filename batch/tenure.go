package batch

// A tenure is the time for which one program holds a producer's name, in all partitions of a topic. Its number is made
// of the time, so that a later program's is higher, and of a random part, so that none is used twice:
//
//	63     20 19    8 7     0
//	ms        random  openings
//
// A program that must open its name again, because it cannot tell what became of its batches, counts up the openings:
// so what it sent before is fenced, and no other program is.
const (
	// MinTenure is the lowest number of a tenure. Lower ones are epochs of producers that have none.
	MinTenure = 1 << 32
	// MaxTenure is the highest number that a program may make up: there are always higher ones for the next.
	MaxTenure = 1<<63 - 1

	tenureOpeningBits = 8
	tenureRandomBits  = 12
	tenureAboveBits   = 16
	minTenureMs       = MinTenure >> (tenureOpeningBits + tenureRandomBits)
)

// NewTenure returns the number of a tenure that begins at a time, in ms since 1970.
func NewTenure(ms int64, random uint64) uint64 {
	return (uint64(max(ms, minTenureMs))<<tenureRandomBits | random&(1<<tenureRandomBits-1)) << tenureOpeningBits
}

// TenureAbove returns the number of a tenure of another program that is above this one: up to a minute later, by
// chance, because others may begin above the same one, in other partitions.
func TenureAbove(tenure, random uint64) uint64 {
	ms := tenure>>(tenureOpeningBits+tenureRandomBits) + 1 + random>>(64-tenureAboveBits)
	return NewTenure(int64(ms), random)
}
