// Package instant restores a directory that can be used at once: all names are there, content is
// fetched when it is read, and everything is restored in the background. Afterwards, the target is
// a plain directory.
//
// The files follow a run:
//
//	instant.go  runs the steps
//	place.go    opens the target, and knows what an earlier run left there
//	session.go  shows the snapshot, with what users change above it, and restores it meanwhile
//	wanted.go   lets the restore give way to what users wait for
//	plan.go     plans how the two trees become one
//	merge.go    makes them one, and moves the result into the target
//	copy.go     copies the attributes of a directory
//
// # Trees
//
// While a run works, the target contains one directory, which only root can enter:
//
//	.bctl-instant/view      the snapshot, shown by package mount
//	.bctl-instant/upper     what users have changed
//	.bctl-instant/work      needed by overlayfs
//	.bctl-instant/tree      what package restore has restored
//	.bctl-instant/snapshot  which snapshot it is
//	.bctl-instant/plan      the plan; from then on, nothing is mounted any more
//	.bctl-instant/stepped   the plan, when upper has everything
//
// An overlayfs over the target shows upper above view. The kernel copies a file into upper before
// it is changed, and notes there what was deleted or renamed. The restore writes into tree, which
// is not a part of the overlay: what users do and what is restored never meet before the end.
//
// At the end, what upper does not have is moved from tree into upper, and all of upper into the
// target. Both take a rename for each name in directories that users have changed, and none for
// what is below other directories.
//
// # State after an interruption
//
//	stopped or killed        the target                           run again
//	before the restore ends  only .bctl-instant; files in it are  continues; keeps upper
//	                         whole or absent
//	after the plan           parts of the tree, and .bctl-instant  carries out the plan
//
// A file is never there without its content. A mount of a killed run stays: what it would have to
// fetch fails with ENOTCONN. The next run unmounts it.
//
// # Confinement (I10)
//
// The overlay and the view never leave their trees. The work after the unmounting opens directories
// name by name, without following symlinks. Nobody but root reaches the trees by then.
package instant
