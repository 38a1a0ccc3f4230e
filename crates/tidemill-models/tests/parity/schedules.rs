//! Noise schedules against DDPMScheduler.

use crate::cases::cases;
use crate::compare::Maximum;
use tch::Device;
use tidemill_models::{NoiseSchedule, SchedulerConfig};

#[test]
fn schedules_are_ddpms() {
    let mut table = Maximum::new("alphas_cumprod", 1e-6);
    let mut noisy = Maximum::new("add_noise", 1e-6);
    let mut target = Maximum::new("targets", 1e-6);
    let cases = cases("schedule");
    for case in &cases {
        let config = SchedulerConfig::read(&case.dir.join("scheduler_config.json")).unwrap();
        let at = || format!("{config:?}");
        let schedule = NoiseSchedule::new(config.clone(), Device::Cpu);
        table.check(schedule.alphas_cumprod(), case.tensor("alphas_cumprod"), at);
        let [latents, noise, timesteps] = ["latents", "noise", "timesteps"].map(|name| case.tensor(name));
        noisy.check(&schedule.add_noise(latents, noise, timesteps), case.tensor("noisy"), at);
        target.check(&schedule.target(latents, noise, timesteps), case.tensor("target"), at);
    }
    assert_eq!(cases.len(), 8);
    [table, noisy, target].iter().for_each(Maximum::print);
}
