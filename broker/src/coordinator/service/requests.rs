//! Join, sync, heartbeat, leave.

use super::table::Table;
use super::{Coordinator, Shared};
use crate::coordinator::limits::{CLIENT_TEXT_BYTES_MAX, NAME_BYTES_MAX};
use crate::coordinator::membership::{JoinRefusal, JoinRequest, Joined, SyncRequest, Synced};
use crate::coordinator::{ConsumerGroupError, ConsumerGroupName, InstanceId, MemberId};
use std::sync::Arc;

impl Coordinator {
    /// Joins a group; answers when the rebalance has come together. Dropping the future leaves the member in the group
    /// until its session ends.
    ///
    /// # Errors
    /// A member id to join again with, or Kafka's reason.
    pub async fn join_group(
        &self,
        group: &ConsumerGroupName,
        mut request: JoinRequest,
    ) -> Result<Joined, JoinRefusal> {
        check_join(group, &request).map_err(JoinRefusal::Error)?;
        shorten(&mut request.client_id);
        shorten(&mut request.client_host);
        let fresh = self.shared.fresh_member(&request);
        let waiting = {
            let mut table = self.shared.table.lock();
            self.shared
                .join(&mut table, group, request, fresh)
                .map_err(JoinRefusal::Error)?
        };
        waiting
            .await
            .unwrap_or(Err(JoinRefusal::Error(ConsumerGroupError::NotCoordinator)))
    }

    /// Brings or asks for the assignment; answers when the generation is in the log.
    ///
    /// # Errors
    /// Kafka's reason.
    pub async fn sync_group(
        &self,
        group: &ConsumerGroupName,
        request: SyncRequest,
    ) -> Result<Synced, ConsumerGroupError> {
        check_group(group)?;
        check_member(&request.member, request.instance.as_ref())?;
        let waiting = {
            let mut table = self.shared.table.lock();
            Shared::check_leading(&table)?;
            if table.get(group).is_none() {
                return Err(ConsumerGroupError::UnknownMember);
            }
            let (ticket, waiting) = table.wait_sync()?;
            let now = self.shared.now();
            self.shared.with_group(&mut table, group, |membership| {
                ((), membership.sync(now, ticket, request))
            });
            waiting
        };
        waiting
            .await
            .unwrap_or(Err(ConsumerGroupError::NotCoordinator))
    }

    /// Says that a member lives.
    ///
    /// # Errors
    /// Kafka's reason.
    pub fn heartbeat(
        &self,
        group: &ConsumerGroupName,
        member: &MemberId,
        instance: Option<&InstanceId>,
        generation: i32,
    ) -> Result<(), ConsumerGroupError> {
        check_group(group)?;
        let mut table = self.shared.table.lock();
        Shared::check_leading(&table)?;
        let now = self.shared.now();
        let heard = self.shared.with_group(&mut table, group, |membership| {
            (
                membership.heartbeat(now, member, instance, generation),
                Vec::new(),
            )
        });
        heard.unwrap_or(Err(ConsumerGroupError::UnknownMember))
    }

    /// Members leave; one result for each, in order.
    ///
    /// # Errors
    /// When the whole request is refused.
    pub fn leave_group(
        &self,
        group: &ConsumerGroupName,
        leaving: &[(MemberId, Option<InstanceId>)],
    ) -> Result<Vec<Result<(), ConsumerGroupError>>, ConsumerGroupError> {
        check_group(group)?;
        let mut table = self.shared.table.lock();
        Shared::check_leading(&table)?;
        let now = self.shared.now();
        let results = self.shared.with_group(&mut table, group, |membership| {
            membership.leave(now, leaving)
        });
        Ok(results.unwrap_or_else(|| vec![Err(ConsumerGroupError::UnknownMember); leaving.len()]))
    }
}

impl Shared {
    fn join(
        self: &Arc<Self>,
        table: &mut Table,
        group: &ConsumerGroupName,
        request: JoinRequest,
        fresh: MemberId,
    ) -> Result<tokio::sync::oneshot::Receiver<Result<Joined, JoinRefusal>>, ConsumerGroupError>
    {
        Self::check_leading(table)?;
        self.admit(table, group)?;
        let waiting = table.wait_join();
        let (ticket, waiting) = match waiting {
            Ok(waiting) => waiting,
            Err(error) => {
                self.settle(table, group);
                return Err(error);
            }
        };
        let now = self.now();
        self.with_group(table, group, |membership| {
            ((), membership.join(now, ticket, request, fresh))
        });
        Ok(waiting)
    }

    /// A member id: what the member calls itself, then a random uuid.
    fn fresh_member(&self, request: &JoinRequest) -> MemberId {
        let prefix = request
            .instance
            .as_ref()
            .map_or(request.client_id.as_str(), InstanceId::as_str);
        let mut prefix = prefix.to_owned();
        shorten(&mut prefix);
        MemberId::new(format!("{prefix}-{}", self.random.uuid()))
    }
}

/// Checks a group's name.
pub(super) fn check_group(group: &ConsumerGroupName) -> Result<(), ConsumerGroupError> {
    if group.is_empty() || group.as_str().len() > NAME_BYTES_MAX {
        return Err(ConsumerGroupError::InvalidGroup);
    }
    Ok(())
}

/// Checks the lengths of a member's names.
pub(super) fn check_member(
    member: &MemberId,
    instance: Option<&InstanceId>,
) -> Result<(), ConsumerGroupError> {
    let instance_fits =
        instance.is_none_or(|id| !id.is_empty() && id.as_str().len() <= NAME_BYTES_MAX);
    if member.as_str().len() <= NAME_BYTES_MAX && instance_fits {
        Ok(())
    } else {
        Err(ConsumerGroupError::InvalidRequest)
    }
}

fn check_join(group: &ConsumerGroupName, request: &JoinRequest) -> Result<(), ConsumerGroupError> {
    check_group(group)?;
    check_member(&request.member, request.instance.as_ref())?;
    let long = |text: &str| text.len() > NAME_BYTES_MAX;
    if long(&request.protocol_type) || request.protocols.iter().any(|(name, _)| long(name)) {
        return Err(ConsumerGroupError::InvalidRequest);
    }
    Ok(())
}

/// Shortens what is only shown to people.
fn shorten(text: &mut String) {
    if text.len() > CLIENT_TEXT_BYTES_MAX {
        let end = (0..=CLIENT_TEXT_BYTES_MAX)
            .rev()
            .find(|end| text.is_char_boundary(*end))
            .unwrap_or(0);
        text.truncate(end);
    }
}
