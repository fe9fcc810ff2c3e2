// Package campaign chooses the seeds of a campaign of the simulator: new ones each time, half of them as they come and
// half of them for the faults that found something lately.
//
// Command sim uses it. It imports package world and the standard library.
package campaign
