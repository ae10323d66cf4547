//! The lock around lanes and policy.
/// x
pub struct Load;
/// x
pub struct Queue;
/// x
pub struct QueueLimits;
/// x
pub struct Ticket;
